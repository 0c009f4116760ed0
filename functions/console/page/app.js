import { session } from "./api.js";
import { loadCaller } from "./caller.js";
import { showClients } from "./clients.js";
import { showCommand, showCommands } from "./commands.js";
import { card, emptyState, icon, link, pageHead } from "./components.js";
import { showDeadLetter } from "./dead_letter.js";
import { showGroups } from "./dead_letter_groups.js";
import { showList } from "./dead_letter_list.js";
import { announce, h } from "./dom.js";
import { showEntitlement } from "./entitlement.js";
import { SIGN_IN } from "./failures.js";
import { formatTime } from "./format.js";
import { refreshNow, refreshing, stopLive } from "./live.js";
import { showOverview } from "./overview.js";
import { openSignIn, readToken, showSignIn } from "./sign_in.js";
import { showTrace } from "./trace.js";
import { showUser } from "./users.js";
import { zone } from "./zone.js";

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
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  main.replaceChildren();
  const { parts, query } = readAddress();
  showTop(parts[0] ?? "");
  if (!session.token) showSignIn(main, signedIn);
  else route(parts, query);
  const heading = main.querySelector("h1");
  document.title = `${session.token ? (heading?.textContent ?? "Dead letter") : "Sign in"} · Grantwire console`;
  if (!isFirst) {
    (heading ?? main).focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  isFirst = false;
}

/** Return the parts of the path and the parameters behind the # of the address. */
function readAddress() {
  const [, path, search] = /^#?\/?([^?]*)\??(.*)$/s.exec(location.hash);
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(search) };
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
  else if (page === "users" && second) showEntitlement(main, first, second, query);
  else if (page === "users") showUser(main, first ?? "", query);
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
  const { environment, client } = readToken();
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
    environment && zoneTool(),
    themeTool(),
    environment && signOutTool(),
  );
  top.replaceChildren(h("div", { class: "top-row" }, brand, tools), session.token ? navigation : "");
  scrollToCurrent(navigation);
}

/** Show the current page on a narrow screen. scrollIntoView would also let Tab begin there, after the skip link. */
function scrollToCurrent(navigation) {
  const current = navigation.querySelector("[aria-current]")?.getBoundingClientRect();
  if (!current) return;
  const visible = navigation.getBoundingClientRect();
  navigation.scrollLeft += current.left - visible.left - (visible.width - current.width) / 2;
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

function zoneTool() {
  const other = zone.isUtc ? "the time of this computer" : "UTC";
  return h(
    "button",
    {
      type: "button",
      class: "tool",
      id: "zone",
      "aria-label": `Times are in ${zone.label}. Switch to ${other}`,
      title: `Times are in ${zone.name}. Switch to ${other}.`,
      onclick: () => {
        zone.toggle();
        showPage();
        document.getElementById("zone").focus();
        announce(`Times are in ${zone.name}.`);
      },
    },
    icon("clock"),
    h("span", { class: "tool-zone" }, zone.label),
  );
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

const theme = localStorage.getItem(THEME_KEY);
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
document.getElementById("skip-link").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # names the page
  main.focus();
});
addEventListener("hashchange", showPage);
/** Show the page that the address names with the token that was just given. */
function signedIn() {
  announce("Signed in.");
  loadCaller();
  showPage();
}

/** Go on with another token. The page, its address, and a form above it stay. */
function signedInAgain() {
  announce("Signed in.");
  loadCaller();
  showTop(readAddress().parts[0] ?? "");
  for (const failure of document.querySelectorAll('dialog .failure[data-part="token"]')) {
    failure.closest(".notice").remove();
  }
  if (!refreshNow()) showPage();
}

addEventListener(SIGN_IN, () => openSignIn(signedInAgain));
if (session.token) loadCaller();
showPage();
