import { h } from "./dom.js";

/** Return the address of the page of a user. */
export function userHash(userId) {
  return `#/users/${encodeURIComponent(userId)}`;
}

/** Return the address of the page of an entitlement. */
export function entitlementHash(userId, sku) {
  return `${userHash(userId)}/${encodeURIComponent(sku)}`;
}

/** Return a link to the trace of an entitlement. */
export function traceLink(userId, sku) {
  const query = new URLSearchParams({ user_id: userId, stock_keeping_unit: sku });
  return h("a", { href: `#/trace?${query}`, "aria-label": `Trace ${sku}` }, "Trace");
}

/** Return the path of an entitlement in the API. */
export function entitlementPath(userId, sku) {
  return `/v1/users/${encodeURIComponent(userId)}/entitlements/${encodeURIComponent(sku)}`;
}
