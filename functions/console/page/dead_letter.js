import { openDeadLetterAction } from "./actions.js";
import { get } from "./api.js";
import { needsScope, scopeNote } from "./caller.js";
import {
  KIND_NAMES,
  badge,
  card,
  copyButton,
  definitions,
  emptyState,
  idWithCopy,
  jsonText,
  link,
  notice,
  pageHead,
  table,
  timeOf,
} from "./components.js";
import { announce, h, replaceContent } from "./dom.js";
import { asSentence, capitalized, countOf, formatCount, formatName, formatTime, shortId } from "./format.js";
import { showLive } from "./live.js";
import { groupHash } from "./overview.js";
import { lastActionText } from "./recent.js";
import { traceTimeline } from "./timeline.js";

/** What happened to the dead letters of each kind. */
export const KIND_TEXTS = {
  outbox: "could not be published",
  nats: "could not be recorded from the stream",
  notification: "could not be sent to the receiver",
};

/** Show one dead letter with its message and its trace. */
export function showDeadLetter(main, kind, id) {
  const head = h("div");
  main.append(head);
  showLive(
    main,
    async () => {
      const dead = await get(`/v1/ops/dead-letters/${encodeURIComponent(kind)}/${encodeURIComponent(id)}`);
      const trace = dead.event_id ? await get("/v1/ops/trace", { event_id: dead.event_id }) : null;
      return { dead, trace };
    },
    ({ dead, trace }) => {
      replaceContent(head, deadLetterHead(dead));
      return renderDeadLetter(dead, trace);
    },
    { every: 5000, scope: "ops:read" },
  );
}

function deadLetterHead(dead) {
  const selection = { kind: dead.kind, ids: [dead.dead_letter_id] };
  const text = `This dead letter: ${dead.cause}.`;
  const button = (action, name, style) =>
    needsScope(
      "ops:write",
      h(
        "button",
        {
          type: "button",
          class: style,
          "data-key": action,
          onclick: () => openDeadLetterAction(action, selection, text),
        },
        name,
      ),
    );
  const actions = dead.state === "OPEN" && [
    button("redrive", "Redrive…", dead.message.problem ? "button" : "button primary"),
    button("discard", "Discard…", "button"),
  ];
  return h(
    "div",
    {},
    h(
      "nav",
      { "aria-label": "Breadcrumb", class: "crumbs" },
      link("#/dead-letters", "Dead letters"),
      " / ",
      link(groupHash(dead), "Group"),
      " / ",
      h("span", { "aria-current": "page" }, shortId(dead.dead_letter_id)),
    ),
    pageHead(
      capitalized(dead.cause),
      `${KIND_NAMES[dead.kind]}: this message ${KIND_TEXTS[dead.kind]}.`,
      actions || [],
    ),
    actions && scopeNote("ops:write", "Redrive and discard"),
  );
}

function renderDeadLetter(dead, trace) {
  announce(`The dead letter is ${dead.state.toLowerCase()}.`);
  const last = dead.last_action;
  const facts = definitions([
    ["State", [badge(dead.state), dead.closed_at && [" ", timeOf(dead.closed_at)]]],
    ["Last action", last && [lastActionText(last), h("p", { class: "quiet" }, last.reason)]],
    ["Since", timeOf(dead.since, formatTime)],
    ["Error", dead.error === dead.cause ? null : dead.error],
    ["Attempts", dead.attempts === null || dead.attempts === undefined ? null : formatCount(dead.attempts)],
    ["User", dead.user_id && link(`#/users/${encodeURIComponent(dead.user_id)}`, dead.user_id)],
    ["Stock keeping unit", dead.stock_keeping_unit],
    ["Event type", dead.event_type],
    [
      "Event",
      dead.event_id && [idWithCopy(dead.event_id, "event id"), " ", link(`#/trace?event_id=${dead.event_id}`, "Trace")],
    ],
    ["Dead letter", idWithCopy(dead.dead_letter_id, "dead letter id")],
    ["Trace id", dead.trace_id && idWithCopy(dead.trace_id, "trace id")],
  ]);
  return [
    !dead.has_copy &&
      dead.state === "OPEN" &&
      notice(
        "warn",
        "The message was not kept",
        "It was no longer in the stream when it was recorded, so it cannot be redriven from here. Its event may " +
          "still be in the outbox; see the trace.",
      ),
    h("div", { class: "columns" }, card("Facts", facts), card("Message", messageContent(dead.message))),
    card(
      "Trace",
      trace
        ? traceTimeline(trace)
        : emptyState(
            "No event id",
            "The message has no readable event id, so its path is not known. It may come from another publisher.",
          ),
    ),
    dead.actions.length > 0 && card("Actions of operators", actionsTable(dead.actions), { flush: true }),
  ];
}

function messageContent(message) {
  const facts = definitions([
    ["Format", message.format === "none" ? "no copy" : message.format],
    ["Size", message.size === null || message.size === undefined ? null : countOf(message.size, "byte")],
    ["Subject", message.subject],
    ["Stream", message.stream && `${message.stream}, sequence ${message.stream_sequence}`],
  ]);
  return h(
    "div",
    { class: "message" },
    facts,
    message.problem &&
      notice(
        "warn",
        "It could not be decoded",
        asSentence(message.problem),
        "A redrive fails in the same way until the bridge can decode it. If it comes from another publisher, stop " +
          "that one and discard the message.",
      ),
    message.decoded !== null && message.decoded !== undefined && jsonText(message.decoded),
    readableBytes(message),
    message.base64 &&
      h(
        "details",
        { "data-key": "base64" },
        h("summary", {}, "Bytes as base64"),
        h("p", {}, copyButton(message.base64, "Copy the bytes as base64", "Copy")),
        h("pre", { class: "json", tabindex: "0", "aria-label": "Bytes as base64" }, message.base64),
      ),
    message.headers && h("details", { "data-key": "headers" }, h("summary", {}, "Headers"), jsonText(message.headers)),
  );
}

/** Return the beginning of a message that cannot be decoded, as text or as hexadecimal digits. */
function readableBytes({ text, hex }) {
  const content = text ?? hex;
  if (!content) return null;
  const label = text ? "Text of the message" : "First bytes of the message, hexadecimal";
  return [
    h("p", { class: "quiet" }, label),
    h("pre", { class: text ? "json text" : "json hex", tabindex: "0", "aria-label": label }, content),
  ];
}

function actionsTable(actions) {
  return table(
    "Actions of operators",
    [
      {
        label: "Action",
        of: (each) => [
          h("span", { class: "strong" }, formatName(each.action)),
          each.dry_run && h("span", { class: "quiet" }, " (dry run)"),
        ],
      },
      { label: "Actor", of: (each) => each.actor },
      { label: "Reason", kind: "wide", of: (each) => each.reason },
      { label: "Source", of: (each) => each.source },
      { label: "Time", of: (each) => timeOf(each.at) },
    ],
    actions,
  );
}
