import { h, s } from "./dom.js";
import { countOf, formatCount, formatSeconds } from "./format.js";

const WIDTH = 240;
const HEIGHT = 44;
const HOUR_MILLISECONDS = 3_600_000;
const GAP_MILLISECONDS = 150_000; // two samples are missing

/** Return a line of the last hour. A gap in the samples is a gap in the line. */
export function sparkline(samples, name, label, now, format = formatCount) {
  const known = samples.filter((sample) => sample[name] !== null && Date.parse(sample.at) >= now - HOUR_MILLISECONDS);
  if (known.length < 2) return h("p", { class: "quiet spark-none" }, "No samples of the last hour yet");
  const values = known.map((sample) => sample[name]);
  const top = Math.max(...values, 1);
  const x = (sample) => WIDTH - 3 - ((now - Date.parse(sample.at)) / HOUR_MILLISECONDS) * (WIDTH - 6);
  const y = (value) => HEIGHT - 3 - (value / top) * (HEIGHT - 8);
  const lines = [];
  known.forEach((sample, index) => {
    const isGap = index > 0 && Date.parse(sample.at) - Date.parse(known[index - 1].at) > GAP_MILLISECONDS;
    if (index === 0 || isGap) lines.push([]);
    lines.at(-1).push([x(sample), y(sample[name])]);
  });
  const path = (points) =>
    points.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const area = (points) =>
    `${path(points)}L${points.at(-1)[0].toFixed(1)} ${HEIGHT}L${points[0][0].toFixed(1)} ${HEIGHT}Z`;
  const range = `${format(Math.min(...values))} to ${format(Math.max(...values))}`;
  const text = `${label}, last hour: ${range}, now ${format(values.at(-1))}`;
  const last = lines.at(-1).at(-1);
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
    s("title", {}, text),
    lines.map((points) => [
      s("path", { class: "spark-area", d: area(points) }),
      s("path", { class: "spark-line", d: path(points) }),
    ]),
    s("path", { class: "spark-end", d: `M${last[0].toFixed(1)} ${last[1].toFixed(1)}h0.01` }),
  );
}

/** Return the stages of the flow with their numbers and tones, from the status. */
function stages(status, milliseconds) {
  const { outbox, stream, inbox, notifications, receiver, read_model: model } = status;
  const byKind = (kind) =>
    status.dead_letters.groups.filter((group) => group.kind === kind).reduce((sum, group) => sum + group.count, 0);
  const codes = new Set(status.problems.map((problem) => problem.code));
  const differences = (model.ahead ?? 0) + (model.behind ?? 0) + (model.wrong ?? 0);
  return [
    {
      name: "API",
      big: "Up",
      lines: ["responded in", formatSeconds(milliseconds / 1000)],
      tone: "good",
      rate: null,
      dead: 0,
    },
    {
      name: "Outbox",
      big: formatCount(outbox.pending, outbox.capped),
      lines: [
        outbox.pending === 1 && !outbox.capped ? "event pending" : "events pending",
        outbox.oldest_pending_at ? `oldest ${formatSeconds(outbox.oldest_pending_seconds)}` : "nothing waits",
      ],
      tone: outbox.failed ? "bad" : codes.has("EVENTS_OLD") ? "warn" : "good",
      rate: outbox.published_last_minute,
      dead: outbox.failed,
      kind: "outbox",
    },
    {
      name: "Stream",
      big: { UP: "Up", DOWN: "Down" }[stream.state] ?? "Unknown",
      lines: [
        "NATS JetStream",
        stream.consumer_lag === null ? "lag unknown" : `lag ${formatCount(stream.consumer_lag)}`,
      ],
      tone: stream.state === "DOWN" ? "bad" : stream.state !== "UP" || codes.has("CONSUMER_LAG") ? "warn" : "good",
      rate: inbox.processed_last_minute,
      dead: byKind("nats"),
      kind: "nats",
    },
    {
      name: "Inbox",
      big: formatCount(inbox.processed_last_minute),
      lines: [
        "in the last minute",
        differences
          ? `read model: ${formatCount(differences)} off`
          : model.measured_at
            ? "read model in step"
            : "model not verified",
      ],
      tone: differences ? "warn" : "good",
      rate: null,
      dead: 0,
    },
    {
      name: "Notifications",
      big: formatCount(notifications.pending, notifications.capped),
      lines: [
        "to send",
        notifications.oldest_due_seconds ? `due for ${formatSeconds(notifications.oldest_due_seconds)}` : "nothing due",
      ],
      tone: notifications.failed ? "bad" : codes.has("NOTIFICATIONS_OVERDUE") ? "warn" : "good",
      rate: notifications.sent_last_minute,
      dead: notifications.failed,
      kind: "notification",
    },
    {
      name: "Receiver",
      big: { AVAILABLE: "Up", FAILING: "Failing", UNAVAILABLE: "Away" }[receiver.state] ?? "Unknown",
      lines: [
        `${formatCount(notifications.sent_last_minute)} in the last minute`,
        describeReceiver(receiver, notifications),
      ],
      tone:
        receiver.state === "UNAVAILABLE"
          ? "bad"
          : receiver.state === "FAILING" || notifications.failed || codes.has("NOTIFICATIONS_OVERDUE")
            ? "warn"
            : "good",
      rate: null,
      dead: 0,
    },
  ];
}

function describeReceiver(receiver, notifications) {
  if (receiver.state === "UNAVAILABLE") return "circuit open";
  if (receiver.failures_in_a_row) return countOf(receiver.failures_in_a_row, "failure");
  if (notifications.failed || notifications.waiting.length) return "refuses some";
  return receiver.state === "AVAILABLE" ? "no refusals" : "no attempt seen";
}

const BOX = { width: 142, height: 108, gap: 66 };

/** Return the picture of the flow: boxes with counts, arrows with rates, and dead letters below or beside them. */
export function flowPicture(status, milliseconds) {
  const all = stages(status, milliseconds);
  const described = all
    .map(({ name, big, lines, dead }) => {
      const facts = [big, ...lines, ...(dead ? [countOf(dead, "dead letter")] : [])];
      return `${name}: ${facts.join(", ")}`;
    })
    .join(". ");
  return h("div", { class: "flow" }, horizontal(all, described), vertical(all, described));
}

function horizontal(all, described) {
  const width = all.length * BOX.width + (all.length - 1) * BOX.gap;
  const parts = all.map((stage, index) => {
    const left = index * (BOX.width + BOX.gap);
    const arrow = index < all.length - 1 && [
      s("path", { class: "flow-arrow", d: `M${left + BOX.width + 8} 55h${BOX.gap - 15}m-6 -5l6 5l-6 5` }),
      stage.rate !== null &&
        s(
          "text",
          { class: "flow-rate", x: left + BOX.width + BOX.gap / 2 + 1, y: 43 },
          `${formatCount(stage.rate)}/min`,
        ),
    ];
    return [
      box(stage, left + 1, 1),
      arrow,
      stage.dead > 0 && deadBadge(stage, left + BOX.width / 2, BOX.height + 8, true),
    ];
  });
  return s(
    "svg",
    {
      class: "flow-wide",
      viewBox: `0 0 ${width + 2} ${all.some((stage) => stage.dead) ? BOX.height + 40 : BOX.height + 3}`,
      role: "group",
      "aria-label": `Flow. ${described}`,
    },
    parts,
  );
}

function vertical(all, described) {
  const step = BOX.height + 40;
  const parts = all.map((stage, index) => {
    const top = index * step;
    const arrow = index < all.length - 1 && [
      s("path", { class: "flow-arrow", d: `M75 ${top + BOX.height + 5}v28m-5 -6l5 6l5 -6` }),
      stage.rate !== null &&
        s("text", { class: "flow-rate start", x: 90, y: top + BOX.height + 24 }, `${formatCount(stage.rate)}/min`),
    ];
    return [box(stage, 1, top + 1), arrow, stage.dead > 0 && deadBadge(stage, 228, top + 38, false)];
  });
  return s(
    "svg",
    {
      class: "flow-narrow",
      viewBox: `0 0 304 ${all.length * step - 38}`,
      role: "group",
      "aria-label": `Flow. ${described}`,
    },
    parts,
  );
}

function box(stage, left, top) {
  return s(
    "g",
    { class: `flow-box ${stage.tone}`, transform: `translate(${left} ${top})` },
    s("rect", { width: BOX.width, height: BOX.height, rx: 10 }),
    s("circle", { class: "flow-dot", cx: BOX.width - 16, cy: 19, r: 4.5 }),
    s("text", { class: "flow-name", x: 14, y: 23 }, stage.name),
    s("text", { class: "flow-big", x: 14, y: 54 }, stage.big),
    stage.lines.map((line, index) => s("text", { class: "flow-small", x: 14, y: 75 + index * 18 }, line)),
  );
}

function deadBadge(stage, x, y, isBelow) {
  const text = countOf(stage.dead, "dead letter");
  const width = text.length * 6.7 + 22;
  return s(
    "a",
    { href: `#/dead-letters/list?kind=${stage.kind}`, class: "flow-dead", "aria-label": `${text} of ${stage.name}` },
    isBelow
      ? s("path", { class: "flow-drop", d: `M${x} ${y - 7}v9` })
      : s("path", { class: "flow-drop", d: `M${BOX.width + 2} ${y + 15}H${x - width / 2}` }),
    s("rect", { x: x - width / 2, y: y + 2, width, height: 26, rx: 13 }),
    s("text", { x, y: y + 19.5 }, text),
  );
}
