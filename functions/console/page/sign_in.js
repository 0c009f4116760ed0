import { get, session } from "./api.js";
import { field, notice, openDialog } from "./components.js";
import { h } from "./dom.js";
import { failureNotice } from "./failures.js";

const TOKEN = /^gw_([a-z0-9]{1,16})_([a-z0-9]{12})_[A-Za-z0-9]{43}$/;

/** Return the environment and the client of the token of this tab; none without a token. */
export function readToken() {
  const [, environment, client] = TOKEN.exec(session.token) ?? [];
  return { environment, client };
}

/** Show the form to sign in as a page. `done` is called with a token that the API accepts. */
export function showSignIn(main, done) {
  const { form, problem } = signInForm(done);
  main.append(
    h(
      "div",
      { class: "sign-in" },
      h(
        "div",
        { class: "card" },
        h("h1", { tabindex: "-1" }, "Sign in"),
        h("p", { class: "lead" }, "See whether entitlements flow, find out why one did not, and repair it."),
        problem,
        form,
      ),
      help(),
    ),
  );
  form.elements.token.focus();
}

/** Ask for another token above the page, which stays as it is, with a form that is half filled in. */
export function openSignIn(done) {
  const { form, problem } = signInForm(() => {
    close();
    done();
  });
  const text = "The page stays as it is. What you have not confirmed is not sent until you confirm it.";
  const { close } = openDialog("Sign in again", [h("p", {}, text), problem, form]);
  form.elements.token.focus();
}

function signInForm(done) {
  const problem = h("div", { id: "sign-in-problem" });
  const input = h("input", {
    name: "token",
    id: "token",
    type: "password",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    autocapitalize: "off",
    placeholder: "gw_…",
  });
  const hint = "Of a client with the scope ops:read. It stays in this tab and is forgotten when the tab closes.";
  const form = h(
    "form",
    { class: "stack" },
    field("Token", input, hint),
    h("button", { type: "submit", class: "button primary wide" }, "Sign in"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await signIn(input.value.trim().replace(/^bearer +/i, ""), { form, problem, done });
  });
  return { form, problem };
}

async function signIn(token, { form, problem, done }) {
  if (!TOKEN.test(token)) {
    problem.replaceChildren(
      notice(
        "bad",
        "This is not a token",
        "A token begins with gw_ and has four parts, separated by underscores. Copy all of it.",
      ),
    );
    return;
  }
  const button = form.querySelector("button");
  const before = session.token;
  button.disabled = true;
  session.signIn(token);
  try {
    await get("/v1/ops/status");
  } catch (error) {
    if (error.part !== "scope") {
      if (before) session.signIn(before);
      else session.signOut();
      button.disabled = false;
      problem.replaceChildren(failureNotice(error, null, { canSignIn: false }));
      form.elements.token.focus();
      return;
    }
  }
  done();
}

function help() {
  const scopes = [
    [["ops:read"], "to see the system"],
    [["ops:write"], "to redrive, discard and rebuild"],
    [["clients:read", "clients:write"], "to manage clients"],
    [["entitlements:read", "notifications:read"], "to see what a user has"],
    [["entitlements:write"], "to grant, revoke and extend"],
  ];
  return h(
    "details",
    { class: "help" },
    h("summary", {}, "Where do I get a token?"),
    h(
      "p",
      {},
      "On a local stack, ",
      h("code", {}, "make env"),
      " prints one. Otherwise ask an operator to create a client for you, with the scopes that you need:",
    ),
    h(
      "ul",
      {},
      scopes.map(([names, what]) =>
        h(
          "li",
          {},
          names.map((name, index) => [index > 0 && " and ", h("code", {}, name)]),
          ` ${what}`,
        ),
      ),
    ),
  );
}
