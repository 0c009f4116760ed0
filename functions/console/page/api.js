// The API is at the address of this page without its last part, so it works below any stage of API Gateway.
const BASE = location.pathname.replace(/\/console\/?$/, "");
const TIMEOUT_MILLISECONDS = 25_000;
const TOKEN_KEY = "grantwire-token";

/** A request that failed. `part` says what is away or refused; `since` is when this part began to fail. */
export class ApiError extends Error {
  constructor(part, message, { status = 0, code = "", since = Date.now(), retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { part, status, code, since, retryAfter });
  }
}

// The token is kept for this tab only: a new tab, and a browser that was closed, must sign in again.
export const session = {
  get token() {
    return sessionStorage.getItem(TOKEN_KEY) ?? "";
  },
  signIn(token) {
    sessionStorage.setItem(TOKEN_KEY, token);
  },
  signOut() {
    sessionStorage.clear();
  },
  get actor() {
    return sessionStorage.getItem("grantwire-actor") ?? "";
  },
  set actor(name) {
    sessionStorage.setItem("grantwire-actor", name);
  },
};

// When each part began to fail without a success since. A part is "api", "database" or "limit".
const failingSince = new Map();

/** When the last successful response arrived, and how long it took. */
export const lastResponse = { at: 0, milliseconds: 0 };

/** Return the response to a GET request. `query` entries without a value are left out. */
export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(given).toString();
  return send("GET", parameters ? `${path}?${parameters}` : path);
}

/** Return the response to a POST request. Sending it again with the same key has no second effect. */
export function post(path, body, key) {
  return send("POST", path, body, key);
}

/** Return a new idempotency key. */
export function newKey() {
  return (
    crypto.randomUUID?.() ??
    Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-")
  );
}

async function send(method, path, body, key) {
  const headers = { Authorization: `Bearer ${session.token}` };
  const request = { method, headers, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body !== undefined) {
    Object.assign(headers, { "Content-Type": "application/json", "Idempotency-Key": key });
    request.body = JSON.stringify(body);
  }
  const started = performance.now();
  let response;
  let parsed;
  try {
    response = await fetch(BASE + path, { ...request, signal: AbortSignal.timeout(TIMEOUT_MILLISECONDS) });
    parsed = await readJson(response);
  } catch (error) {
    const reason = error.name === "TimeoutError" ? "no response within 25 s" : "no connection";
    throw new ApiError("api", reason, { since: noteFailure("api") });
  }
  if (response.ok && parsed !== null) {
    failingSince.clear();
    Object.assign(lastResponse, { at: Date.now(), milliseconds: performance.now() - started });
    return parsed;
  }
  throw toError(response, parsed);
}

async function readJson(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function toError(response, parsed) {
  const { status } = response;
  const message = parsed?.message ?? `status ${status}`;
  const retryAfter = Number(response.headers.get("Retry-After") ?? 0);
  const details = { status, code: parsed?.code ?? "", retryAfter };
  if (status === 401) return new ApiError("token", message, details);
  if (status === 403) return new ApiError(partOfRefusal(message), message, details);
  if (status === 503) return new ApiError("database", message, { ...details, since: noteFailure("database") });
  if (status === 429) return new ApiError("limit", message, { ...details, since: noteFailure("limit") });
  if (status >= 500 || parsed === null) return new ApiError("api", message, { ...details, since: noteFailure("api") });
  return new ApiError("request", message, details);
}

/** Return whether the token lacks a scope, is not valid for the gateway, or lacks authority over what it would change. */
function partOfRefusal(message) {
  if (/^missing required scope \S+$/.test(message)) return "scope";
  return message.startsWith("invalid token") ? "token" : "request";
}

function noteFailure(part) {
  if (!failingSince.has(part)) failingSince.set(part, Date.now());
  return failingSince.get(part);
}
