import { badge, code, definitions, emptyState, timeOf } from "./components.js";
import { h } from "./dom.js";
import { formatName, formatOffset, formatSeconds, formatTime, shortId } from "./format.js";

const STAGE_TONES = {
  request: "calm",
  change: "calm",
  outbox: "calm",
  published: "calm",
  inbox: "calm",
  read_model: "calm",
  notification: "calm",
  attempt: "warn",
  sent: "good",
  dead_letter: "bad",
  closed: "mute",
  operator_action: "warn",
};

/** Return the timeline of a trace. */
export function traceTimeline(trace) {
  if (trace.timeline.length === 0 && trace.removed.length === 0) {
    return emptyState(
      "Nothing is known about it",
      "No change, event or notification has this id. Check the id, and that it belongs to this environment. The " +
        "audit may have been deleted by retention.",
    );
  }
  const several = trace.changes.length > 1;
  const last = trace.changes.length === 1 ? trace.changes[0] : null;
  return [
    last &&
      h(
        "p",
        { class: "trace-summary" },
        badge(last.state),
        ` ${STATE_TEXTS[last.state]} `,
        h(
          "span",
          { class: "quiet" },
          trace.timeline.length > 1
            ? `${formatSeconds(trace.timeline.at(-1).offset_ms / 1000)} from the first to the last entry.`
            : "",
        ),
      ),
    h(
      "ol",
      { class: "timeline" },
      trace.removed.map(removedEntry),
      trace.timeline.map((entry, index) => timelineEntry(entry, trace.timeline[index - 1], several, index)),
    ),
  ];
}

const STATE_TEXTS = {
  REFUSED: "The request changed nothing.",
  PENDING: "The event waits in the outbox.",
  PUBLISHED: "NATS has the event, the inbox does not have it yet.",
  RECORDED: "The notification waits to be sent.",
  SENT: "The receiver has the notification.",
  DEAD_LETTER: "It waits for an operator.",
  DISCARDED: "An operator gave it up.",
  UNKNOWN: "Retention has deleted the later stages.",
};

function timelineEntry(entry, before, several, index) {
  const gap = before ? entry.offset_ms - before.offset_ms : 0;
  const detail = Object.entries(entry.detail ?? {}).filter(([, value]) => value !== null && value !== "");
  return h(
    "li",
    { class: STAGE_TONES[entry.stage] ?? "mute", "data-stage": entry.stage },
    h(
      "div",
      { class: "entry-time" },
      h(
        "span",
        { class: "offset", title: gap >= 1 ? `${formatSeconds(gap / 1000)} after the entry before` : null },
        formatOffset(entry.offset_ms),
      ),
      timeOf(entry.at, formatTime),
    ),
    h(
      "div",
      { class: "entry" },
      h(
        "p",
        { class: "entry-title" },
        h("span", { class: "stage" }, formatName(entry.stage)),
        several && entry.event_id && h("span", { class: "quiet" }, " ", code(shortId(entry.event_id), entry.event_id)),
      ),
      h("p", {}, entry.summary),
      detail.length > 0 &&
        h(
          "details",
          { "data-key": `${entry.stage} ${index}` },
          h("summary", {}, "Details"),
          definitions(
            detail.map(([name, value]) => [formatName(name), detailValue(name, value)]),
            "rows",
          ),
        ),
    ),
  );
}

function detailValue(name, value) {
  if (name === "dead_letter_id" || name === "command_id") return code(String(value));
  return typeof value === "object" ? code(JSON.stringify(value)) : String(value);
}

function removedEntry(removed) {
  return h(
    "li",
    { class: "removed", "data-stage": "removed" },
    h("div", { class: "entry-time" }, h("span", { class: "offset" }, "–")),
    h(
      "div",
      { class: "entry" },
      h("p", { class: "entry-title" }, h("span", { class: "stage" }, formatName(removed.stage))),
      h("p", { class: "quiet" }, `No longer known: ${removed.reason}`),
    ),
  );
}
