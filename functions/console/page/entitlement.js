import { entitlementHash, entitlementPath, traceLink, userHash } from "./addresses.js";
import { get } from "./api.js";
import { currentCaller, scopeNote } from "./caller.js";
import { changeButtons } from "./changes.js";
import { badge, card, code, definitions, emptyState, link, pageHead, table, timeOf } from "./components.js";
import { h, replaceContent } from "./dom.js";
import { asSentence, formatCount, formatName, formatTime, withTimes } from "./format.js";
import { showLive } from "./live.js";

const PAGE_SIZE = 50;

/** Show one entitlement: whether the user may use it, why, who changed it, and how to change it. */
export function showEntitlement(main, userId, sku, query) {
  const before = query.get("before") ?? "";
  const path = entitlementPath(userId, sku);
  const actions = h("div", { class: "actions" });
  main.append(
    h(
      "nav",
      { "aria-label": "Breadcrumb", class: "crumbs" },
      link("#/users", "Users"),
      " / ",
      link(userHash(userId), userId),
      " / ",
      h("span", { "aria-current": "page" }, sku),
    ),
    pageHead(sku, `Of the user ${userId}.`, actions),
    scopeNote("entitlements:write", "A change of an entitlement"),
  );
  const load = async () => {
    const [check, page] = await Promise.all([get(path), get(`${path}/history`, { limit: PAGE_SIZE, before })]);
    return { check, page };
  };
  const render = ({ check, page }) => {
    replaceContent(actions, changeButtons(userId, check, "button"), traceLink(userId, sku));
    return [
      card("Now", stateContent(check)),
      card("Changes", changesContent(page, { userId, sku, before }), { flush: true }),
    ];
  };
  showLive(main, load, render, { every: 5000, scope: "entitlements:read" });
}

function stateContent(check) {
  return definitions(
    [
      ["Allowed", h("strong", {}, check.allowed ? "Yes" : "No")],
      ["Status", badge(check.status)],
      ["Why", asSentence(withTimes(check.reason.message))],
      ["Version", formatCount(check.version)],
      ["Starts", check.starts_at && timeOf(check.starts_at, formatTime)],
      ["Ends", check.version === null ? null : check.expires_at ? timeOf(check.expires_at, formatTime) : "no end"],
      ["Changed", check.updated_at && timeOf(check.updated_at)],
    ],
    "grid",
  );
}

function changesContent({ history, next_before: next }, { userId, sku, before }) {
  const here = entitlementHash(userId, sku);
  if (history.length === 0) {
    return emptyState("No changes", "It was never granted, or retention has deleted its changes.");
  }
  const ownId = currentCaller()?.client_id;
  return [
    table(
      "Changes",
      [
        {
          label: "Change",
          kind: "short",
          of: (each) => h("span", { class: "strong" }, formatName(each.operation.toLowerCase())),
        },
        { label: "Status", of: (each) => badge(each.status) },
        { label: "Version", kind: "number", of: (each) => formatCount(each.version) },
        { label: "Reason", kind: "wide", of: (each) => each.reason ?? "–" },
        { label: "Purchase or case", kind: "short", of: (each) => each.purchase_id ?? "–" },
        { label: "Client", kind: "short", of: (each) => [code(each.caller), each.caller === ownId && " (you)"] },
        { label: "Ends", of: (each) => timeOf(each.expires_at, formatTime) },
        { label: "Time", of: (each) => timeOf(each.occurred_at, formatTime) },
      ],
      history,
    ),
    (before || next) &&
      h(
        "nav",
        { class: "pages table-more", "aria-label": "Pages of changes" },
        before && link(here, "Newest"),
        next && link(`${here}?${new URLSearchParams({ before: next })}`, "Older"),
      ),
  ];
}
