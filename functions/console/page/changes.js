import { entitlementHash, entitlementPath, traceLink } from "./addresses.js";
import { busy, keyKeeper } from "./actions.js";
import { get, post } from "./api.js";
import { currentCaller, needsScope } from "./caller.js";
import { badge, code, definitions, field, link, notice, openDialog, table } from "./components.js";
import { h } from "./dom.js";
import { capitalized, formatTime } from "./format.js";
import { refreshNow } from "./live.js";
import { fromField, toField, zone } from "./zone.js";

const WRITE = "entitlements:write";
const CHANGES = {
  grant: {
    name: "Grant",
    path: "/v1/entitlements/grants",
    text: "The user may use the item from its start on.",
    refusal: ({ status }) => (isActive(status) ? `it is already ${status}` : null),
  },
  extend: {
    name: "Extend",
    path: "/v1/entitlements/extensions",
    text: "Moves the end, later or earlier, or removes it.",
    refusal: ({ status, expires_at: end }, request) => {
      if (!isActive(status)) return status === "NONE" ? "it was never granted" : `it is ${status}; grant it again`;
      const isSame = (end && Date.parse(end)) === (request.expires_at && Date.parse(request.expires_at));
      return isSame ? "it already has this end" : null;
    },
  },
  revoke: {
    name: "Revoke",
    path: "/v1/entitlements/revokes",
    text: "The user may not use the item any more, from now on.",
    isDangerous: true,
    refusal: ({ status }) =>
      isActive(status) ? null : status === "NONE" ? "it was never granted" : `it is already ${status}`,
  },
};

const isActive = (status) => status === "ACTIVE" || status === "SCHEDULED";

/** Return the buttons for the changes that an entitlement allows in its status. */
export function changeButtons(userId, { stock_keeping_unit: sku, status, expires_at: end }, style = "button small") {
  const names = isActive(status) ? ["extend", "revoke"] : ["grant"];
  return names.map((name) => changeButton(name, { user_id: userId, stock_keeping_unit: sku }, { end, style }));
}

/** Return the button that opens the form of a change. Without `stock_keeping_unit`, the form asks for it. */
export function changeButton(name, names, { end = null, style = "button" } = {}) {
  const label = CHANGES[name].name;
  const properties = {
    type: "button",
    class: style,
    "data-key": `${name} ${names.stock_keeping_unit ?? ""}`,
    "aria-label": names.stock_keeping_unit ? `${label} ${names.stock_keeping_unit}` : null,
    onclick: () => openChange(name, names, end),
  };
  return needsScope(WRITE, h("button", properties, `${label}…`));
}

/** Ask for the reason, show the state before and after, ask for confirmation, and show the result. */
function openChange(name, names, end) {
  const change = CHANGES[name];
  const form = h(
    "form",
    { class: "stack" },
    h("p", { class: "quiet" }, change.text),
    nameFields(names),
    timeFields(name, end),
    reasonFields(),
    recordedAs(),
    h(
      "div",
      { class: "dialog-actions" },
      h("button", { type: "submit", class: "button primary" }, "Preview"),
      h("span", { class: "quiet" }, "Nothing changes yet."),
    ),
  );
  const problem = h("div");
  const keyFor = keyKeeper();
  const { body, close } = openDialog(`${change.name} an entitlement`, [problem, form], { onclose: refreshNow });
  form.querySelector("input").focus();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = readRequest(name, names, form);
    const read = async () => {
      const before = await get(entitlementPath(request.user_id, request.stock_keeping_unit));
      showPreview(body, { change, request, before, keyFor, form, problem, close });
    };
    await busy(form, problem, read, "entitlements:read");
  });
}

function nameFields({ user_id: userId, stock_keeping_unit: sku }) {
  if (sku) {
    return definitions([
      ["User", userId],
      ["Stock keeping unit", sku],
    ]);
  }
  const input = textInput("stock_keeping_unit", 128);
  return [definitions([["User", userId]]), field("Stock keeping unit", input, "The item.")];
}

function reasonFields() {
  return [
    field("Reason", textInput("reason", 64), "For the people who read the history later, for example goodwill."),
    field("Purchase or case", textInput("purchase_id", 128), "The purchase, or the number of the support case."),
  ];
}

function textInput(name, maxlength) {
  return h("input", { name, required: true, maxlength, pattern: ".*\\S.*", autocomplete: "off", spellcheck: "false" });
}

function timeFields(name, end) {
  if (name === "revoke") return null;
  const input = (time, value = "") => h("input", { name: time, type: "datetime-local", value });
  const hint = (text) => `${text} In ${zone.name}.`;
  const ends = field("Ends", input("expires_at", end ? toField(end) : ""), hint("No end if empty."));
  if (name === "extend") return ends;
  return h("div", { class: "field-row" }, field("Starts", input("starts_at"), hint("Now if empty.")), ends);
}

function recordedAs() {
  const caller = currentCaller();
  return (
    caller &&
    h(
      "p",
      { class: "quiet" },
      "Recorded as the change of your client ",
      h("strong", {}, caller.name),
      " ",
      code(caller.client_id),
      ".",
    )
  );
}

function readRequest(name, names, form) {
  const value = (input) => form.elements[input].value.trim();
  const request = { ...names, reason: value("reason"), purchase_id: value("purchase_id") };
  if (form.elements.stock_keeping_unit) request.stock_keeping_unit = value("stock_keeping_unit");
  for (const time of ["starts_at", "expires_at"]) {
    if (form.elements[time] && value(time)) request[time] = fromField(value(time));
  }
  if (name === "extend") request.expires_at ??= null; // an extension says that there is no end
  return request;
}

/** Return the state after a change, as far as the request and the state before it say. */
function stateAfter(change, request, before) {
  if (change === CHANGES.revoke) return { ...before, status: "REVOKED" };
  if (change === CHANGES.extend) return { ...before, expires_at: request.expires_at };
  const isScheduled = request.starts_at && Date.parse(request.starts_at) > Date.now();
  return {
    status: isScheduled ? "SCHEDULED" : "ACTIVE",
    starts_at: request.starts_at ?? null,
    expires_at: request.expires_at ?? null,
  };
}

function showPreview(body, { change, request, before, keyFor, form, problem, close }) {
  const refusal = change.refusal(before, request);
  const goBack = () => {
    body.replaceChildren(problem, form);
    form.elements.reason.focus();
  };
  const style = change.isDangerous ? "button danger" : "button primary";
  const confirmation = h(
    "form",
    { class: "stack", id: "preview" },
    h("p", { class: "strong", tabindex: "-1" }, `${request.stock_keeping_unit} of ${request.user_id}`),
    refusal
      ? notice("warn", "Nothing would change", `${capitalized(refusal)}.`)
      : comparison(before, stateAfter(change, request, before), change === CHANGES.grant ? "now" : "–"),
    definitions([
      ["Reason", request.reason],
      ["Purchase or case", request.purchase_id],
    ]),
    !refusal && h("p", { class: "quiet" }, "The receiver is notified, as of every change."),
    h(
      "div",
      { class: "dialog-actions" },
      !refusal && h("button", { type: "submit", class: style }, `${change.name} ${request.stock_keeping_unit}`),
      h("button", { type: "button", class: "button", onclick: goBack }, "Back"),
    ),
  );
  confirmation.addEventListener("submit", async (event) => {
    event.preventDefault();
    const send = async () => {
      const after = await post(change.path, request, keyFor(request));
      showResult(body, { request, before, after, close });
    };
    await busy(confirmation, problem, send, WRITE);
  });
  problem.replaceChildren();
  body.replaceChildren(problem, confirmation);
  confirmation.querySelector("p").focus();
}

function comparison(before, after, noStart) {
  const time = (value, none) => (value ? formatTime(value) : none);
  const rows = [
    ["Status", badge(before.status), badge(after.status)],
    ["Starts", time(before.starts_at, "–"), time(after.starts_at, noStart)],
    ["Ends", time(before.expires_at, before.status === "NONE" ? "–" : "no end"), time(after.expires_at, "no end")],
  ];
  return table(
    "Before and after",
    [
      { label: "Field", hidden: true, of: ([name]) => h("strong", {}, name) },
      { label: "Now", of: ([, now]) => now },
      { label: "Afterwards", of: ([, , then]) => then },
    ],
    rows,
  );
}

function showResult(body, { request, before, after, close }) {
  const { user_id: userId, stock_keeping_unit: sku } = request;
  const trace = traceLink(userId, sku);
  const changes = link(entitlementHash(userId, sku), "Changes");
  for (const each of [trace, changes]) each.addEventListener("click", close);
  const result = h(
    "div",
    { class: "stack", tabindex: "-1" },
    notice("good", `${sku} is ${after.status}`, after.expires_at ? `It ends ${formatTime(after.expires_at)}.` : ""),
    after.version !== (before.version ?? 0) + 1 &&
      notice(
        "warn",
        "It changed between the preview and the confirmation",
        `It had the version ${before.version ?? "none"} and has ${after.version} now. See its changes.`,
      ),
    h(
      "div",
      { class: "dialog-actions" },
      changes,
      trace,
      h("button", { type: "button", class: "button", onclick: close }, "Close"),
    ),
  );
  body.replaceChildren(result);
  result.focus();
}
