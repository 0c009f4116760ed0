import { get, session } from "./api.js";
import { showClients } from "./clients.js";
import { showCommand, showCommands } from "./commands.js";
import { card, emptyState, field, icon, link, notice, pageHead } from "./components.js";
import { showDeadLetter, showGroups, showList } from "./dead_letters.js";
import { announce, h } from "./dom.js";
import { failureNotice } from "./failures.js";
import { formatTime } from "./format.js";
import { SIGN_IN, refreshing, stopLive } from "./live.js";
import { showOverview } from "./overview.js";
import { showTrace } from "./trace.js";
import { showUser } from "./users.js";

const TOKEN = /^gw_([a-z0-9]{1,16})_([a-z0-9]{12})_[A-Za-z0-9]{43}$/;
const THEME_KEY = "grantwire-theme";
const PAGES = [
  ["", "Overview"],
  ["dead-letters", "Dead letters"],
  ["trace", "Trace"],
  ["users", "Users"],
  ["commands", "Commands"],
  ["clients", "Clients"],
];

const main = document.getElementById("main");
const top = document.getElementById("top");
let isFirst = true;

/** Show the page that the address names; without a token, the form to sign in. */
function showPage() {
  stopLive();
  document.querySelector("dialog")?.close();
  main.replaceChildren();
  const [, path, search] = /^#?\/?([^?]*)\??(.*)$/s.exec(location.hash);
  const parts = path.split("/").filter(Boolean).map(decode);
  showTop(parts[0] ?? "");
  if (!session.token) showSignIn();
  else route(parts, new URLSearchParams(search));
  const heading = main.querySelector("h1");
  document.title = `${session.token ? (heading?.textContent ?? "Dead letter") : "Sign in"} · Grantwire console`;
  if (!isFirst) {
    (heading ?? main).focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  isFirst = false;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route([page = "", first, second], query) {
  if (page === "") showOverview(main);
  else if (page === "dead-letters" && second) showDeadLetter(main, first, second);
  else if (page === "dead-letters" && first === "list") showList(main, query);
  else if (page === "dead-letters") showGroups(main);
  else if (page === "trace") showTrace(main, query);
  else if (page === "users") showUser(main, first ?? "");
  else if (page === "commands" && first) showCommand(main, first);
  else if (page === "commands") showCommands(main, query);
  else if (page === "clients") showClients(main);
  else {
    main.append(
      pageHead("No such page", null),
      card(
        "Not found",
        emptyState("The console has no such page", "The address may be mistyped.", link("#/", "Overview")),
      ),
    );
  }
}

function showTop(page) {
  const [, environment, client] = TOKEN.exec(session.token) ?? [];
  const brand = h(
    "a",
    { class: "brand", href: "#/" },
    h("span", { class: "brand-mark", "aria-hidden": "true" }),
    "Grantwire",
    h("span", { class: "brand-sub" }, "console"),
  );
  const navigation = h(
    "nav",
    { class: "nav", "aria-label": "Pages" },
    h(
      "ul",
      {},
      PAGES.map(([path, name]) =>
        h("li", {}, h("a", { href: `#/${path}`, "aria-current": path === page ? "page" : null }, name)),
      ),
    ),
  );
  const tools = h(
    "div",
    { class: "tools" },
    environment && [
      refreshTool(),
      h(
        "span",
        { class: "environment", title: `Client ${client}` },
        h("span", { class: "visually-hidden" }, "Environment "),
        environment,
      ),
    ],
    themeTool(),
    environment && signOutTool(),
  );
  top.replaceChildren(h("div", { class: "top-row" }, brand, tools), session.token ? navigation : "");
  navigation.querySelector("[aria-current]")?.scrollIntoView?.({ block: "nearest", inline: "center" });
}

function refreshTool() {
  const text = h("span", { class: "tool-text" });
  const button = h("button", {
    type: "button",
    class: "tool refresh",
    id: "refresh",
    onclick: () => refreshing.toggle(),
  });
  const update = () => {
    const at = refreshing.at ? formatTime(new Date(refreshing.at).toISOString()) : "";
    const state = refreshing.paused ? "Paused" : refreshing.failed ? "Retrying" : "Live";
    text.textContent = at ? `${state} ${at}` : state;
    button.hidden = !refreshing.active;
    button.className = `tool refresh ${state.toLowerCase()}`;
    button.setAttribute("aria-pressed", String(refreshing.paused));
    button.setAttribute("aria-label", "Pause refreshing");
    button.title = refreshing.paused
      ? "Refresh automatically"
      : "Pause refreshing. It also pauses while the tab is hidden.";
    button.replaceChildren(refreshing.paused ? icon("play") : icon("pause"), text);
  };
  refreshing.changed = update;
  update();
  return button;
}

function themeTool() {
  const isDark = () =>
    document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const button = h("button", {
    type: "button",
    class: "tool",
    id: "theme",
    onclick: () => {
      const theme = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      localStorage.setItem(THEME_KEY, theme);
      update();
    },
  });
  const update = () => {
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
  };
  update();
  return button;
}

function signOutTool() {
  return h(
    "button",
    {
      type: "button",
      class: "tool",
      id: "sign-out",
      "aria-label": "Sign out",
      title: "Sign out",
      onclick: () => {
        session.signOut();
        location.hash = "#/";
        showPage();
        announce("Signed out. The token was removed from this tab.");
      },
    },
    icon("out"),
  );
}

function showSignIn() {
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
  const form = h(
    "form",
    { class: "stack" },
    field(
      "Token",
      input,
      "Of a client with the scope ops:read. It stays in this tab and is forgotten when the tab closes.",
    ),
    h("button", { type: "submit", class: "button primary wide" }, "Sign in"),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    await signIn(input.value.trim().replace(/^bearer +/i, ""), form, problem);
  });
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
      h(
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
          h("li", {}, h("code", {}, "ops:read"), " to see the system"),
          h("li", {}, h("code", {}, "ops:write"), " to redrive, discard and rebuild"),
          h("li", {}, h("code", {}, "clients:read"), " and ", h("code", {}, "clients:write"), " to manage clients"),
          h(
            "li",
            {},
            h("code", {}, "entitlements:read"),
            " and ",
            h("code", {}, "notifications:read"),
            " to look at users",
          ),
        ),
      ),
    ),
  );
  input.focus();
}

async function signIn(token, form, problem) {
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
  button.disabled = true;
  session.signIn(token);
  try {
    await get("/v1/ops/status");
  } catch (error) {
    if (error.part !== "scope") {
      session.signOut();
      button.disabled = false;
      problem.replaceChildren(failureNotice(error));
      form.elements.token.focus();
      return;
    }
  }
  announce("Signed in.");
  showPage();
}

const theme = localStorage.getItem(THEME_KEY);
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
document.getElementById("skip-link").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # names the page
  main.focus();
});
addEventListener("hashchange", showPage);
addEventListener(SIGN_IN, () => {
  session.signOut();
  showPage(); // the address stays, so that the same page is shown after the sign-in
});
showPage();
