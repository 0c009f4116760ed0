import { actorFields, busy, keyKeeper, readActor, readFields } from "./actions.js";
import { get, post, session } from "./api.js";
import { needsScope, scopeNote } from "./caller.js";
import {
  badge,
  card,
  code,
  copyButton,
  emptyState,
  field,
  notice,
  openDialog,
  pageHead,
  table,
  timeOf,
} from "./components.js";
import { announce, h } from "./dom.js";
import { countOf, formatCount, formatTime } from "./format.js";
import { refreshNow, showLive } from "./live.js";

const SCOPES = [
  ["entitlements:read", "read entitlements"],
  ["entitlements:write", "grant and revoke"],
  ["notifications:read", "read notifications"],
  ["changes:read", "read the change feed"],
  ["ops:read", "see the system in this console"],
  ["ops:write", "redrive, discard, rebuild"],
  ["clients:read", "list clients"],
  ["clients:write", "manage clients below it"],
];
// The id of a client in its token.
const CLIENT_ID = /^gw_[a-z0-9]+_([a-z0-9]{12})_/;
const DURATION = "[0-9]{1,12}(\\.[0-9]{1,12})?(ms|s|m|h|d)";

/** Show the clients of the API, and let operators create, rotate, limit and revoke them. */
export function showClients(main) {
  main.append(
    pageHead(
      "Clients",
      "Callers of the API with their scopes and limits. Tokens are shown once, when they are issued.",
      needsScope(
        "clients:write",
        h(
          "button",
          { type: "button", class: "button primary", "data-key": "create client", onclick: openCreate },
          "Create client…",
        ),
      ),
    ),
    scopeNote("clients:write", "A change of clients"),
  );
  showLive(main, () => get("/v1/ops/clients"), renderClients, { every: 15_000, scope: "clients:read" });
}

function renderClients({ clients }) {
  if (clients.length === 0) {
    return card("Clients", emptyState("No clients", "Create one for each program that calls the API."));
  }
  const sorted = clients.toSorted((a, b) => Boolean(a.revoked_at) - Boolean(b.revoked_at));
  const names = new Map(clients.map((client) => [client.client_id, client.name]));
  return card(
    "Registered clients",
    table(
      "Clients",
      [
        {
          label: "Name",
          kind: "name",
          of: (client) => [
            h("span", { class: "strong" }, client.name),
            h("p", { class: "quiet" }, code(client.client_id)),
            client.created_by &&
              h("p", { class: "quiet" }, `below ${names.get(client.created_by) ?? client.created_by}`),
          ],
        },
        { label: "State", kind: "states", of: stateOf },
        {
          label: "Scopes",
          kind: "medium",
          of: (client) =>
            h(
              "ul",
              { class: "chips" },
              client.scopes.map((scope) => h("li", {}, scope)),
            ),
        },
        {
          label: "Limits",
          kind: "keep",
          of: (client) =>
            client.rate_limit || client.burst_limit
              ? `${formatCount(client.rate_limit)}/s, burst ${formatCount(client.burst_limit)}`
              : h("span", { class: "quiet" }, "default"),
        },
        { label: "Last used", of: (client) => timeOf(client.last_used_at) },
        { label: "Actions", hidden: true, kind: "row-actions", of: clientActions },
      ],
      sorted,
    ),
    {
      flush: true,
      aside: h(
        "span",
        { class: "quiet" },
        `${formatCount(clients.filter((client) => !client.revoked_at).length)} in use`,
      ),
    },
  );
}

function stateOf(client) {
  if (client.revoked_at) return badge("REVOKED");
  if (client.expires_at && Date.parse(client.expires_at) < Date.now()) return badge("EXPIRED");
  const details = [
    client.expires_at && ["expires ", timeOf(client.expires_at)],
    client.previous_until &&
      Date.parse(client.previous_until) > Date.now() && ["old token until ", timeOf(client.previous_until, formatTime)],
  ].filter(Boolean);
  return [badge("ACTIVE"), details.map((each) => h("p", { class: "quiet" }, each))];
}

function clientActions(client) {
  const [, ownId] = CLIENT_ID.exec(session.token) ?? [];
  if (client.client_id === ownId) return h("span", { class: "quiet" }, "yours");
  if (client.revoked_at) return null;
  const button = (name, open) =>
    needsScope(
      "clients:write",
      h(
        "button",
        {
          type: "button",
          class: "button small",
          "data-key": `${name} ${client.client_id}`,
          "aria-label": `${name} ${client.name}`,
          onclick: () => open(client),
        },
        `${name}…`,
      ),
    );
  return [button("Rotate", openRotate), button("Limits", openLimits), button("Revoke", openRevoke)];
}

/** Open a form that ends with one request. A try without a response is repeated with the same key. */
function openForm(title, content, action, { path, read, done, danger = false }) {
  const problem = h("div");
  const form = h(
    "form",
    { class: "stack" },
    content,
    actorFields(),
    h(
      "div",
      { class: "dialog-actions" },
      h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}` }, action),
    ),
  );
  const { body, close } = openDialog(title, [problem, form], { onclose: refreshNow });
  form.querySelector("input:not([type=checkbox])").focus();
  const keyFor = keyKeeper();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = { ...read(form), ...readActor(form) };
    await busy(
      form,
      problem,
      async () => done(await post(path, request, keyFor(request)), body, close),
      "clients:write",
    );
  });
}

function limitFields(client = {}) {
  return h(
    "div",
    { class: "field-row" },
    field(
      "Requests per second",
      h("input", {
        name: "rate_limit",
        type: "number",
        min: 1,
        max: 1000000,
        value: client.rate_limit,
        inputmode: "numeric",
      }),
      "Empty: default.",
    ),
    field(
      "Burst",
      h("input", {
        name: "burst_limit",
        type: "number",
        min: 1,
        max: 1000000,
        value: client.burst_limit,
        inputmode: "numeric",
      }),
      "Empty: default.",
    ),
  );
}

const LIMITS = ["rate_limit", "burst_limit"];

function openCreate() {
  const scopes = h(
    "fieldset",
    {},
    h("legend", {}, "Scopes"),
    h("p", { class: "hint" }, "Only scopes that your token has itself. The client expires with yours at the latest."),
    h(
      "div",
      { class: "scope-list" },
      SCOPES.map(([scope, text]) =>
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", name: "scope", value: scope }),
          h("span", {}, code(scope), " ", h("span", { class: "quiet" }, text)),
        ),
      ),
    ),
  );
  openForm(
    "Create client",
    [
      field(
        "Name",
        h("input", { name: "name", required: true, maxlength: 64, pattern: ".*\\S.*", autocomplete: "off" }),
      ),
      scopes,
      field(
        "Expires in",
        h("input", { name: "expires_in", pattern: DURATION, placeholder: "90d", autocomplete: "off" }),
        "For example 90d. Empty: never.",
      ),
      limitFields(),
    ],
    "Create client",
    {
      path: "/v1/ops/clients",
      read: (form) => ({
        ...readFields(form, ["name", "expires_in", ...LIMITS], LIMITS),
        scopes: [...form.querySelectorAll("[name=scope]:checked")].map((box) => box.value),
      }),
      done: showToken,
    },
  );
}

function openRotate(client) {
  openForm(
    `Rotate the token of ${client.name}`,
    [
      field(
        "Overlap",
        h("input", { name: "overlap", pattern: DURATION, value: "24h", autocomplete: "off" }),
        "How long the current token stays valid.",
      ),
      field(
        "Expires in",
        h("input", { name: "expires_in", pattern: DURATION, autocomplete: "off" }),
        "For example 90d. Empty: as before.",
      ),
    ],
    "Issue new token",
    {
      path: `/v1/ops/clients/${encodeURIComponent(client.client_id)}/rotate`,
      read: (form) => readFields(form, ["overlap", "expires_in"]),
      done: showToken,
    },
  );
}

function openLimits(client) {
  openForm(`Limits of ${client.name}`, limitFields(client), "Save limits", {
    path: `/v1/ops/clients/${encodeURIComponent(client.client_id)}/limits`,
    read: (form) => readFields(form, LIMITS, LIMITS),
    done: (_response, _body, close) => {
      announce("The limits are saved.");
      close();
    },
  });
}

function openRevoke(client) {
  openForm(
    `Revoke ${client.name}`,
    [
      notice(
        "warn",
        "This cannot be undone",
        "Its tokens stop working within the cache time of the authorizer, 60 seconds by default.",
      ),
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", name: "with_descendants" }),
        h("span", {}, "Also all clients below it: that it created, and that these created"),
      ),
    ],
    `Revoke ${client.name}`,
    {
      path: `/v1/ops/clients/${encodeURIComponent(client.client_id)}/revoke`,
      read: (form) => ({ with_descendants: form.elements.with_descendants.checked }),
      done: showRevocation,
      danger: true,
    },
  );
}

/** Close the form, unless clients below the revoked one are left. */
function showRevocation(revoked, body, close) {
  announce("The client is revoked.");
  if (!revoked.descendants_active) {
    close();
    return;
  }
  const left = countOf(revoked.descendants_active, "client below it is", "clients below it are");
  body.replaceChildren(
    h(
      "div",
      { class: "stack", tabindex: "-1" },
      notice("warn", "The client is revoked", `${left} not revoked. Revoke them one by one if nobody needs them.`),
      h("div", { class: "dialog-actions" }, h("button", { type: "button", class: "button", onclick: close }, "Close")),
    ),
  );
  body.firstChild.focus();
}

function showToken(issued, body, close) {
  const content = issued.token
    ? [
        h("p", {}, "This is the only time that the token is shown. It is not stored."),
        h("p", { class: "token" }, h("code", { tabindex: "0", id: "issued-token" }, issued.token)),
        h(
          "div",
          { class: "dialog-actions" },
          copyButton(issued.token, "Copy the token", "Copy token"),
          h("button", { type: "button", class: "button primary", onclick: close }, "I have stored it"),
        ),
      ]
    : [
        notice(
          "warn",
          "The token was already issued",
          "An earlier try succeeded, but its response was lost, and the token is not stored. Rotate the client to " +
            "get a new one.",
        ),
        h(
          "div",
          { class: "dialog-actions" },
          h("button", { type: "button", class: "button", onclick: close }, "Close"),
        ),
      ];
  body.replaceChildren(
    h(
      "div",
      { class: "stack", tabindex: "-1" },
      h(
        "p",
        {},
        "Client ",
        code(issued.client_id),
        issued.expires_at ? [", expires ", timeOf(issued.expires_at)] : ", does not expire",
        ".",
      ),
      ...content,
    ),
  );
  body.firstChild.focus();
  announce(issued.token ? "The token is shown." : "The token was already issued.");
}
