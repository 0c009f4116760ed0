import { announce, h, s } from "./dom.js";
import { formatAgo, formatTime, shortId } from "./format.js";

/** The tone of every state that the API knows. The text always names the state; colour only repeats it. */
const TONES = {
  OK: "good",
  DONE: "good",
  SENT: "good",
  UP: "good",
  ACTIVE: "good",
  APPLIED: "good",
  PROCESSED: "good",
  PENDING: "calm",
  RUNNING: "calm",
  PUBLISHED: "calm",
  RECORDED: "calm",
  PROCESSING: "calm",
  REDRIVEN: "calm",
  SCHEDULED: "calm",
  ATTENTION: "warn",
  DEGRADED: "warn",
  LATE: "warn",
  UNKNOWN: "mute",
  DISCARDED: "mute",
  REVOKED: "mute",
  EXPIRED: "mute",
  REFUSED: "warn",
  FAILED: "bad",
  DOWN: "bad",
  OPEN: "bad",
  DEAD_LETTER: "bad",
};

/** The names of the kinds of dead letters. */
export const KIND_NAMES = { outbox: "Outbox", nats: "NATS", notification: "Notification" };

/** Return a state as a badge. */
export function badge(state, tone = TONES[state] ?? "mute") {
  return h(
    "span",
    { class: `badge ${tone}` },
    h("span", { class: "dot", "aria-hidden": "true" }),
    state.replaceAll("_", " "),
  );
}

/** Return a time with the exact one as its title: relative by default. */
export function timeOf(time, format = formatAgo) {
  return time
    ? h("time", { datetime: time, title: `${formatTime(time)} (${time})` }, format(time))
    : h("span", { class: "quiet" }, format === formatAgo ? "never" : "–");
}

/** Return a text in the font for code. */
export function code(text, title) {
  return h("code", { title }, text);
}

/** Return an id, shortened, with a button that copies all of it. */
export function idWithCopy(id, label) {
  return h("span", { class: "id" }, code(shortId(id), id), copyButton(id, `Copy ${label}`));
}

/** Return a button that copies a text and says so. */
export function copyButton(text, label, visibleLabel = null) {
  const button = h(
    "button",
    {
      type: "button",
      class: visibleLabel ? "button" : "icon-button",
      "aria-label": visibleLabel ? null : label,
      title: label,
      "data-key": `copy ${text}`,
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(text);
          button.classList.add("copied");
          announce("Copied.");
          setTimeout(() => button.classList.remove("copied"), 1500);
        } catch {
          announce("The browser did not allow copying. Select the text and copy it.");
        }
      },
    },
    icon("copy"),
    visibleLabel,
  );
  return button;
}

const ICONS = {
  copy:
    "M9 9V5a1.5 1.5 0 0 1 1.5-1.5h8A1.5 1.5 0 0 1 20 5v8a1.5 1.5 0 0 1-1.5 1.5H15M5.5 9h8A1.5 1.5 0 0 1 15 " +
    "10.500v8a1.5 1.5 0 0 1-1.5 1.500h-8A1.5 1.5 0 0 1 4 18.500v-8A1.5 1.5 0 0 1 5.5 9z",
  warn: "M12 4 2.5 20h19zM12 10v4.500M12 17.300v.2",
  check: "M4.5 12.5 10 18 19.5 7",
  sun:
    "M12 7.500a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM12 2v2.500M12 19.500V22M2 12h2.500M19.5 12H22M4.9 4.900l1.8 " +
    "1.800M17.3 17.300l1.8 1.800M4.9 19.100l1.8-1.800M17.3 6.700l1.8-1.8",
  clock: "M12 3.500a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17zM12 7v5l3.500 2",
  moon: "M20 14.500A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.500z",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.500v15l12-7.500z",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5 20.5 20.5",
  out: "M14 4H6a1.5 1.5 0 0 0-1.5 1.500v13A1.5 1.5 0 0 0 6 20h8M10 12h10.500M17 8.500l3.5 3.5-3.5 3.5",
  empty: "M4 13.5 6.5 5h11L20 13.500V19H4zM4 13.500h5l1 2.500h4l1-2.500h5",
};

/** Return an icon, which screen readers skip. */
export function icon(name) {
  return s(
    "svg",
    { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    s("path", { d: ICONS[name] }),
  );
}

/** Return a section with a heading, and optional content beside it. */
export function card(title, content, { aside = null, level = "h2", id = null, flush = false } = {}) {
  const heading = id ?? `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h(
    "section",
    { class: flush ? "card flush" : "card", "aria-labelledby": heading },
    h(
      "div",
      { class: "card-head" },
      h(level, { id: heading }, title),
      aside && h("div", { class: "card-aside" }, aside),
    ),
    content,
  );
}

/** Return the title of a page, with an explanation and actions. */
export function pageHead(title, lead, ...actions) {
  return h(
    "div",
    { class: "page-head" },
    h("div", {}, h("h1", { tabindex: "-1" }, title), lead && h("p", { class: "lead" }, lead)),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  );
}

/** Return a table. A column is `{ label, of(row), kind }`; kind "number" aligns right, "wide" takes the space. */
export function table(caption, columns, rows) {
  return h(
    "div",
    { class: "table-wrap", role: "region", "aria-label": caption, tabindex: "0" },
    h(
      "table",
      {},
      h("caption", { class: "visually-hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map((column) =>
            h(
              "th",
              { scope: "col", class: column.kind },
              column.hidden ? h("span", { class: "visually-hidden" }, column.label) : column.label,
            ),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            {},
            columns.map((column) =>
              h("td", { class: column.kind, "data-label": column.hidden ? null : column.label }, column.of(row)),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Return a list of names and values. Entries with the value null are left out. */
export function definitions(entries, kind = "") {
  const known = entries.filter(([, value]) => value !== null && value !== undefined);
  return h(
    "dl",
    { class: `definitions ${kind}` },
    known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** Return what is shown where there is nothing to show, and why. */
export function emptyState(title, text, ...actions) {
  return h(
    "div",
    { class: "empty" },
    icon("empty"),
    h("p", { class: "empty-title" }, title),
    h("p", { class: "quiet" }, text),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  );
}

/** Return a notice: what happened, and what to do. */
export function notice(tone, title, ...content) {
  return h(
    "div",
    { class: `notice ${tone}`, role: tone === "bad" ? "alert" : null },
    icon(tone === "good" ? "check" : "warn"),
    h(
      "div",
      {},
      h("p", { class: "notice-title" }, title),
      content.map((part) => (typeof part === "string" ? h("p", {}, part) : part)),
    ),
  );
}

/** Return a field of a form with its label. `control` gets the id. */
export function field(label, control, hint = null) {
  const id = control.id || `field-${label.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    control,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}

/** Return a selection of `[value, text]` options. */
export function select(name, options, value) {
  return h(
    "select",
    { name },
    options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)),
  );
}

/** Return JSON of the API as indented text. */
export function jsonText(value) {
  return h("pre", { class: "json", tabindex: "0", "aria-label": "JSON" }, JSON.stringify(value, null, 2));
}

/** Open a dialog and return it. The focus goes back to where it was when the dialog closes. */
export function openDialog(title, content, { onclose = () => {} } = {}) {
  const opener = document.activeElement;
  const key = opener?.dataset?.key;
  const body = h("div", { class: "dialog-body" }, content);
  const titleId = `dialog-title-${document.querySelectorAll("dialog").length}`; // one can be above another
  const dialog = h(
    "dialog",
    { "aria-labelledby": titleId },
    h(
      "div",
      { class: "dialog-head" },
      h("h2", { id: titleId }, title),
      h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => dialog.close() }, "✕"),
    ),
    body,
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose();
    const again = opener?.isConnected ? opener : key && document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    (again || document.getElementById("main")).focus({ preventScroll: true });
  });
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, body, close: () => dialog.close() };
}

/** Return a link to a page of the console. */
export function link(hash, ...content) {
  return h("a", { href: hash }, content);
}
