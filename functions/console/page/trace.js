import { userHash } from "./addresses.js";
import { get } from "./api.js";
import { hasScope } from "./caller.js";
import {
  badge,
  card,
  emptyState,
  field,
  idWithCopy,
  link,
  notice,
  pageHead,
  select,
  table,
  timeOf,
} from "./components.js";
import { announce, h, replaceContent } from "./dom.js";
import { failureNotice } from "./failures.js";
import { countOf, formatName, formatTime } from "./format.js";
import { traceTimeline } from "./timeline.js";
import { entitlementsTable } from "./users.js";

const WAYS = [
  ["", "Any id"],
  ["user_id", "User and SKU"],
  ["purchase_id", "Purchase"],
  ["event_id", "Event"],
  ["notification_id", "Notification"],
  ["idempotency_key", "Idempotency key"],
  ["key_fingerprint", "Key fingerprint"],
  ["trace_id", "Trace id"],
  ["correlation_id", "Correlation id"],
];
const UUID = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/i;
const TRACE = /^(?:1-[0-9a-f]{8}-[0-9a-f]{24}|[0-9a-f]{32}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$/i;
const USER_ENTITLEMENTS = 20;
const FINGERPRINT = /^[0-9a-f]{12}$/;

// A user is looked up among the entitlements, because a trace is about one of them.
const USER = "user";

/** Return the ways to look an id up, the likely ones first. */
export function waysFor(id) {
  if (TRACE.test(id)) return ["trace_id", "purchase_id", "idempotency_key", USER];
  if (UUID.test(id)) return ["event_id", "notification_id", "correlation_id", USER, "idempotency_key", "purchase_id"];
  if (FINGERPRINT.test(id)) return ["key_fingerprint", "purchase_id", "idempotency_key", USER];
  return ["purchase_id", USER, "idempotency_key"];
}

/** Show the search for a trace, and the trace that the address names. */
export function showTrace(main, query) {
  const way = WAYS.map(([name]) => name).find((name) => name && query.has(name)) ?? "";
  const id = query.get(way || "id") ?? "";
  const result = h("div", { "aria-live": "off" });
  main.append(
    pageHead("Trace", "Everything that happened to a change, from the request to the receiver."),
    searchForm(way, id, query.get("stock_keeping_unit") ?? ""),
    result,
  );
  if (id) search(result, way, id, query.get("stock_keeping_unit") ?? "");
  else {
    result.append(
      card(
        "Result",
        emptyState(
          "Enter an id",
          "A user, a purchase, an idempotency key or its fingerprint, an event, a notification, the correlation id of " +
            "a request, or a trace id of X-Ray or W3C. “Any id” finds out which it is.",
        ),
      ),
    );
  }
}

function searchForm(way, id, sku) {
  const ways = select("way", WAYS, way);
  const unit = field(
    "Stock keeping unit",
    h("input", { name: "sku", value: sku, autocomplete: "off", spellcheck: "false" }),
  );
  const form = h(
    "form",
    { class: "filters search", role: "search", "aria-label": "Trace" },
    field("Search by", ways),
    h(
      "div",
      { class: "grow" },
      field("Id", h("input", { name: "id", value: id, required: true, autocomplete: "off", spellcheck: "false" })),
    ),
    unit,
    h("div", { class: "filter-actions" }, h("button", { type: "submit", class: "button primary" }, "Trace")),
  );
  const update = () => {
    unit.hidden = ways.value !== "user_id";
    unit.querySelector("input").required = ways.value === "user_id";
    form.querySelector('label[for="field-id"]').textContent = ways.value === "user_id" ? "User" : "Id";
  };
  ways.addEventListener("change", update);
  update();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const parameters = new URLSearchParams({ [ways.value || "id"]: form.elements.id.value.trim() });
    if (ways.value === "user_id") parameters.set("stock_keeping_unit", form.elements.sku.value.trim());
    const hash = `#/trace?${parameters}`;
    if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = hash;
  });
  return form;
}

async function search(result, way, id, sku) {
  result.replaceChildren(h("p", { class: "loading", role: "status" }, "Searching…"));
  try {
    const { trace, found, user } = await lookUp(way, id, sku);
    if (!result.isConnected) return;
    if (user) {
      announce("Found as user.");
      replaceContent(result, h("p", { class: "quiet found" }, "Found as user."), userCard(user));
      return;
    }
    announce(trace.timeline.length ? `${countOf(trace.timeline.length, "entry", "entries")} found.` : "Nothing found.");
    const text =
      found && !way
        ? h("p", { class: "quiet found" }, `Found as ${WAYS.find(([name]) => name === found)[1].toLowerCase()}.`)
        : null;
    replaceContent(result, text, changesCard(trace), card("Timeline", traceTimeline(trace)));
  } catch (error) {
    result.replaceChildren(failureNotice(error, "ops:read"));
  }
}

async function lookUp(way, id, sku) {
  if (way) {
    return {
      trace: await get("/v1/ops/trace", way === "user_id" ? { user_id: id, stock_keeping_unit: sku } : { [way]: id }),
      found: way,
    };
  }
  let trace = null;
  for (const each of waysFor(id)) {
    if (each === USER) {
      const user = hasScope("entitlements:read") && (await findUser(id));
      if (user) return { user };
      continue;
    }
    trace = await get("/v1/ops/trace", { [each]: id });
    if (trace.timeline.length || trace.changes.length) return { trace, found: each };
  }
  return { trace, found: null };
}

/** Return the first entitlements of a user; null if it has none, or if the token may not see them. */
async function findUser(id) {
  try {
    const page = await get(`/v1/users/${encodeURIComponent(id)}/entitlements`, { limit: USER_ENTITLEMENTS });
    return page.entitlements.length > 0 ? page : null;
  } catch (error) {
    if (error.part === "scope" || error.part === "request") return null; // not every id can be one of a user
    throw error;
  }
}

function userCard({ user_id: userId, entitlements, next_after: next }) {
  return card(
    "Entitlements",
    [
      entitlementsTable(userId, entitlements),
      h("p", { class: "table-more" }, link(userHash(userId), next ? "Show all of this user" : "Show this user")),
    ],
    { flush: true, aside: h("span", { class: "quiet" }, `of the user ${userId}`) },
  );
}

function changesCard(trace) {
  if (trace.changes.length === 0) return null;
  const content = table(
    "Changes",
    [
      { label: "State", of: (change) => badge(change.state) },
      {
        label: "Change",
        of: (change) => [
          h("span", { class: "strong" }, formatName(change.operation.toLowerCase())),
          change.version !== null && h("span", { class: "quiet" }, ` version ${change.version}`),
          change.outcome !== "APPLIED" && h("p", { class: "quiet" }, formatName(change.outcome.toLowerCase())),
        ],
      },
      { label: "User", of: (change) => link(`#/users/${encodeURIComponent(change.user_id)}`, change.user_id) },
      { label: "SKU", of: (change) => change.stock_keeping_unit },
      { label: "Purchase", of: (change) => change.purchase_id ?? "–" },
      { label: "Event", of: (change) => idWithCopy(change.event_id, "event id") },
      { label: "Time", of: (change) => timeOf(change.at, formatTime) },
    ],
    trace.changes,
  );
  return card(
    "Changes",
    [
      trace.truncated &&
        notice(
          "warn",
          "There are more changes or steps",
          "Only the newest 50 changes are shown, and 2,000 steps. Search by a purchase or an event to see an older one.",
        ),
      content,
    ],
    { flush: true },
  );
}
