import { ApiError } from "./api.js";
import { notice } from "./components.js";
import { h } from "./dom.js";
import { asSentence, formatAgo, formatTime } from "./format.js";

/** The event that asks for another token, because the current one is no longer valid. */
export const SIGN_IN = "grantwire-sign-in";

const since = (error) => {
  const time = new Date(error.since).toISOString();
  return `Since ${formatTime(time)} (${formatAgo(time)}), as seen from this tab.`;
};

/** Return what failed, since when, and what still works. `scope` is what the page needs. */
export function describeFailure(error, scope) {
  switch (error.part) {
    case "api":
      return {
        title: "The API does not respond",
        text: [
          `${since(error)} The last error was: ${error.message}.`,
          "The console cannot see the system now, so this says nothing about PostgreSQL and NATS. Events that are " +
            "already stored are still published and delivered if the workers run.",
          "What to do: check your network, then the API stage and the errors of its functions. On a local stack: " +
            "make status.",
        ],
      };
    case "database":
      return {
        title: "PostgreSQL is away",
        text: [
          `${since(error)} The API responds, but cannot reach its database.`,
          "Grants, revokes and reads get 503 and can be repeated with the same key. Nothing that was confirmed is " +
            "lost. NATS keeps the events that it has; other consumers of the stream go on.",
          "What to do: see “Database down” in the runbook. The console tries again by itself.",
        ],
      };
    case "limit":
      return {
        title: "Too many requests",
        text: [`${since(error)} The API limits how often this client may ask. The console tries again by itself.`],
      };
    case "scope":
      return missingScope(error.message.split(" ").at(-1));
    case "token":
      return error.status === 403 && scope && scope !== "ops:read"
        ? missingScope(scope)
        : {
            title: "The token is not valid",
            text: ["It is unknown, expired, revoked or of another environment. Sign in with another token."],
          };
    default:
      return {
        title: error.code === "NOT_FOUND" ? "Not found" : "The request was refused",
        text: [asSentence(error.message)],
      };
  }
}

function missingScope(scope) {
  return {
    title: `Your token lacks the scope ${scope}`,
    text: [
      `This part of the console needs ${scope}. The other parts work with the scopes that the token has.`,
      "What to do: sign in with a token of a client that has this scope, or ask an operator with clients:write to " +
        "create one.",
    ],
  };
}

/**
 * Return a notice about a failed request, with `more` below it. An error that is not one of the API is a bug, and is
 * shown as such. A token that is not valid can be replaced there, except in the form that asks for one.
 */
export function failureNotice(error, scope = null, { more = [], canSignIn = true } = {}) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return notice(
      "bad",
      "The console has a defect",
      `${error.name}: ${error.message}`,
      "Reload the page. If it happens again, report it with this text.",
      ...more,
    );
  }
  const { title, text } = describeFailure(error, scope);
  const part = h(
    "div",
    { class: "failure", "data-part": error.part },
    text.map((each) => h("p", {}, each)),
    more,
    error.part === "token" && canSignIn && signInButton(),
  );
  return notice(error.part === "request" || error.part === "scope" ? "warn" : "bad", title, part);
}

function signInButton() {
  return h(
    "button",
    { type: "button", class: "button", "data-key": "sign-in", onclick: () => dispatchEvent(new Event(SIGN_IN)) },
    "Sign in again",
  );
}
