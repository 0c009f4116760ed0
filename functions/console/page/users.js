import { get } from "./api.js";
import { badge, card, definitions, emptyState, field, idWithCopy, pageHead, table, timeOf } from "./components.js";
import { h } from "./dom.js";
import { failureNotice } from "./failures.js";
import { formatCount, formatTime } from "./format.js";
import { showLive } from "./live.js";

/** Show what a user has: from the system of record, from the read model, and the notifications about it. */
export function showUser(main, userId) {
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
    location.hash = `#/users/${encodeURIComponent(form.elements.user_id.value.trim())}`;
  });
  main.append(pageHead("Users", "A user's entitlements and the notifications about them."), form);
  if (!userId) {
    main.append(
      card("Entitlements", emptyState("Enter a user id", "It is the user_id of the requests that grant and revoke.")),
    );
    return;
  }
  showLive(
    main,
    () => loadUser(userId),
    (data) => renderUser(userId, data),
    { every: 6000 },
  );
}

async function loadUser(userId) {
  const user = encodeURIComponent(userId);
  const parts = await Promise.allSettled([
    get(`/v1/users/${user}/entitlements`, { limit: 200 }),
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

function renderUser(userId, { entitlements, summary, inbox }) {
  const show = (part, scope, render) =>
    part.status === "fulfilled" ? render(part.value) : failureNotice(part.reason, scope);
  return [
    card("Summary", show(summary, "entitlements:read", summaryContent), {
      aside: h("span", { class: "quiet" }, "from the read model"),
    }),
    card(
      "Entitlements",
      show(entitlements, "entitlements:read", (data) => entitlementsTable(userId, data)),
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

function entitlementsTable(userId, { entitlements, next_after: next }) {
  if (entitlements.length === 0) {
    return emptyState("No entitlements", "This user was never granted anything. Check the spelling of the id.");
  }
  const traceHash = (sku) => `#/trace?${new URLSearchParams({ user_id: userId, stock_keeping_unit: sku })}`;
  return [
    table(
      "Entitlements",
      [
        {
          label: "Stock keeping unit",
          kind: "wide",
          of: (each) => h("span", { class: "strong" }, each.stock_keeping_unit),
        },
        { label: "Status", of: (each) => badge(each.status) },
        { label: "Version", kind: "number", of: (each) => formatCount(each.version) },
        ...(entitlements.some((each) => each.starts_at)
          ? [{ label: "Starts", of: (each) => timeOf(each.starts_at, formatTime) }]
          : []),
        ...(entitlements.some((each) => each.expires_at)
          ? [{ label: "Expires", of: (each) => timeOf(each.expires_at, formatTime) }]
          : []),
        { label: "Changed", of: (each) => timeOf(each.updated_at) },
        {
          label: "Trace",
          hidden: true,
          of: (each) =>
            h(
              "a",
              {
                href: traceHash(each.stock_keeping_unit),
                "aria-label": `Trace ${each.stock_keeping_unit}`,
              },
              "Trace",
            ),
        },
      ],
      entitlements,
    ),
    next && h("p", { class: "quiet table-more" }, "Only the first 200 are shown."),
  ];
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
