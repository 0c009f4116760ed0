import { entitlementHash, traceLink, userHash } from "./addresses.js";
import { get } from "./api.js";
import { scopeNote } from "./caller.js";
import { changeButton, changeButtons } from "./changes.js";
import {
  badge,
  card,
  definitions,
  emptyState,
  field,
  idWithCopy,
  link,
  pageHead,
  select,
  table,
  timeOf,
} from "./components.js";
import { h } from "./dom.js";
import { failureNotice } from "./failures.js";
import { formatCount, formatTime } from "./format.js";
import { showLive } from "./live.js";

const PAGE_SIZE = 100;
const FILTERS = ["status", "prefix", "after"];
const STATUSES = [
  ["", "All"],
  ["ACTIVE", "Active"],
  ["SCHEDULED", "Scheduled"],
  ["EXPIRED", "Expired"],
  ["REVOKED", "Revoked"],
];

/** Show what a user has: from the system of record, from the read model, and the notifications about it. */
export function showUser(main, userId, query) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));

  const form = h(
    "form",
    { class: "filters search", role: "search", "aria-label": "User" },
    h(
      "div",
      { class: "grow" },
      field(
        "User id",
        h("input", {
          name: "user_id",
          required: true,
          maxlength: 128,
          value: userId,
          autocomplete: "off",
          spellcheck: "false",
        }),
      ),
    ),
    h("div", { class: "filter-actions" }, h("button", { type: "submit", class: "button primary" }, "Show")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = userHash(form.elements.user_id.value.trim());
  });
  const grant = userId ? [changeButton("grant", { user_id: userId }, { style: "button primary" })] : [];
  main.append(
    pageHead("Users", "A user's entitlements and the notifications about them.", ...grant),
    userId ? scopeNote("entitlements:write", "A change of an entitlement") : "",
    form,
  );
  if (!userId) {
    main.append(
      card("Entitlements", emptyState("Enter a user id", "It is the user_id of the requests that grant and revoke.")),
    );
    return;
  }
  main.append(filterForm(userId, filters));
  showLive(
    main,
    () => loadUser(userId, filters),
    (data) => renderUser(userId, data, filters),
    { every: 6000 },
  );
}

function filterForm(userId, filters) {
  const form = h(
    "form",
    { class: "filters", "aria-label": "Filters" },
    field("Status", select("status", STATUSES, filters.status)),
    field(
      "SKU begins with",
      h("input", { name: "prefix", value: filters.prefix, maxlength: 128, autocomplete: "off", spellcheck: "false" }),
    ),
    h(
      "div",
      { class: "filter-actions" },
      h("button", { type: "submit", class: "button" }, "Filter"),
      link(userHash(userId), "Clear"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { status, prefix } = form.elements;
    const parameters = new URLSearchParams(given({ status: status.value, prefix: prefix.value.trim() })).toString();
    location.hash = `${userHash(userId)}${parameters ? `?${parameters}` : ""}`;
  });
  return form;
}

async function loadUser(userId, filters) {
  const user = encodeURIComponent(userId);
  const parts = await Promise.allSettled([
    get(`/v1/users/${user}/entitlements`, { ...filters, limit: PAGE_SIZE }),
    get(`/v1/users/${user}/summary`, { limit: 1 }),
    get(`/debug/notification/inbox/${user}`, { limit: 50 }),
  ]);
  const transient = parts.find(
    (part) => part.status === "rejected" && ["api", "database", "limit"].includes(part.reason.part),
  );
  if (transient) throw transient.reason;
  const [entitlements, summary, inbox] = parts;
  return { entitlements, summary, inbox };
}

function renderUser(userId, { entitlements, summary, inbox }, filters) {
  const show = (part, scope, render) =>
    part.status === "fulfilled" ? render(part.value) : failureNotice(part.reason, scope);
  return [
    card("Summary", show(summary, "entitlements:read", summaryContent), {
      aside: h("span", { class: "quiet" }, "from the read model"),
    }),
    card(
      "Entitlements",
      show(entitlements, "entitlements:read", (data) => entitlementsContent(userId, data, filters)),
      { flush: true, aside: h("span", { class: "quiet" }, "from the system of record") },
    ),
    card(
      "Notifications",
      inbox.reason?.code === "NOT_FOUND"
        ? emptyState(
            "The list of notifications is switched off",
            "The parameter InboxEnabled of the deployment is false, as it must be in production. The trace of an " +
              "entitlement shows its notifications.",
          )
        : show(inbox, "notifications:read", notificationsTable),
      { flush: true },
    ),
  ];
}

function summaryContent(summary) {
  const last = summary.last_change;
  return definitions(
    [
      ["Active", formatCount(summary.active)],
      ["Revoked", formatCount(summary.revoked)],
      ["Expired", "expired" in summary ? formatCount(summary.expired) : null],
      [
        "Last change",
        last
          ? [`${last.stock_keeping_unit}, version ${last.version} `, badge(last.status), " ", timeOf(last.changed_at)]
          : "none",
      ],
    ],
    "grid",
  );
}

function entitlementsContent(userId, { entitlements, next_after: next }, filters) {
  const isFiltered = FILTERS.some((name) => filters[name]);
  if (entitlements.length === 0) {
    return isFiltered
      ? [noneMatch(userId, next), pageLinks(userId, filters, next)]
      : emptyState("No entitlements", "This user was never granted anything. Check the spelling of the id.");
  }
  return [entitlementsTable(userId, entitlements), pageLinks(userId, filters, next)];
}

function noneMatch(userId, next) {
  const showAll = link(userHash(userId), "Show all");
  return next
    ? emptyState("None of this page match", "10,000 entitlements were examined. The next page continues.", showAll)
    : emptyState("No entitlements match", "The user has none with these filters, or none after this page.", showAll);
}

/** Return a table with the entitlements of a user, each with the changes that it allows. */
export function entitlementsTable(userId, entitlements) {
  const hasTime = (name) => entitlements.some((each) => each[name]);
  const timeColumn = (label, name) => ({ label, of: (each) => timeOf(each[name], formatTime) });
  return table(
    "Entitlements",
    [
      {
        label: "Stock keeping unit",
        kind: "wide",
        of: ({ stock_keeping_unit: sku }) => h("a", { href: entitlementHash(userId, sku), class: "strong" }, sku),
      },
      { label: "Status", of: (each) => badge(each.status) },
      { label: "Version", kind: "number", of: (each) => formatCount(each.version) },
      ...(hasTime("starts_at") ? [timeColumn("Starts", "starts_at")] : []),
      ...(hasTime("expires_at") ? [timeColumn("Ends", "expires_at")] : []),
      { label: "Changed", of: (each) => timeOf(each.updated_at) },
      {
        label: "Actions",
        hidden: true,
        kind: "row-actions",
        of: (each) => [changeButtons(userId, each), traceLink(userId, each.stock_keeping_unit)],
      },
    ],
    entitlements,
  );
}

function pageLinks(userId, filters, next) {
  if (!filters.after && !next) return null;
  const at = (after) => `${userHash(userId)}?${new URLSearchParams(given({ ...filters, after }))}`;
  return h(
    "nav",
    { class: "pages table-more", "aria-label": "Pages of entitlements" },
    filters.after && link(at(""), "First page"),
    next && link(at(next), "Next page"),
  );
}

function given(filters) {
  return Object.entries(filters).filter(([, value]) => value);
}

function notificationsTable({ notifications }) {
  if (notifications.length === 0) {
    return emptyState(
      "No notifications",
      "A notification is recorded when the event of a change arrives, normally within a second.",
    );
  }
  return table(
    "Notifications",
    [
      {
        label: "Event",
        kind: "wide",
        of: (each) => [
          h("span", { class: "strong" }, each.event_type),
          h("p", { class: "quiet" }, `${each.stock_keeping_unit}, version ${each.version}`),
        ],
      },
      { label: "Status", of: (each) => badge(each.status) },
      { label: "Failed attempts", kind: "number", of: (each) => formatCount(each.attempt_count) },
      { label: "Recorded", of: (each) => timeOf(each.created_at) },
      { label: "Sent", of: (each) => timeOf(each.sent_at) },
      { label: "Id", of: (each) => idWithCopy(each.notification_id, "notification id") },
      {
        label: "Trace",
        hidden: true,
        of: (each) =>
          h(
            "a",
            {
              href: `#/trace?event_id=${each.event_id}`,
              "aria-label": `Trace the event of ${each.stock_keeping_unit}`,
            },
            "Trace",
          ),
      },
    ],
    notifications,
  );
}
