import { get, lastResponse } from "./api.js";
import { flowPicture, sparkline } from "./charts.js";
import { KIND_NAMES, badge, card, definitions, emptyState, link, pageHead, table, timeOf } from "./components.js";
import { announce, h } from "./dom.js";
import { asSentence, countOf, formatAgo, formatCount, formatName, formatSeconds, formatTime } from "./format.js";
import { showLive } from "./live.js";
import { LINKS, STAGES, TITLES } from "./problems.js";

const SAMPLES_MILLISECONDS = 30_000;
// A younger change is on its way.
const NOTICEABLE_SECONDS = 5;
let samples = { at: 0, list: [] };

/** Show whether entitlements flow, and what needs a person. */
export function showOverview(main) {
  main.append(pageHead("Overview", "Whether entitlements flow, stage by stage."));
  showLive(main, load, render, { every: 4000, scope: "ops:read" });
}

async function load() {
  const status = await get("/v1/ops/status");
  const milliseconds = lastResponse.milliseconds;
  if (Date.now() - samples.at > SAMPLES_MILLISECONDS) {
    try {
      samples = { at: Date.now(), list: (await get("/v1/ops/samples", { hours: 1 })).samples };
    } catch {
      samples.at = 0; // the numbers are worth showing without their history
    }
  }
  return { status, milliseconds };
}

function render({ status, milliseconds }) {
  const problems = byCode(status.problems);
  announce(
    problems.size === 0
      ? "Entitlements flow."
      : `${countOf(problems.size, "problem")}: ${[...problems.keys()].map(titleOf).join(", ")}.`,
  );
  return [
    headline(problems, status),
    card("Flow", flowPicture(status, milliseconds), {
      aside: h("span", { class: "quiet" }, "counts now, rates of the last minute"),
    }),
    tiles(status),
    waiting(status),
    h("div", { class: "columns" }, [deadLetters(status), housekeeping(status)]),
    card("Workers", workers(status), {
      id: "workers",
      flush: true,
      aside: h("span", { class: "quiet" }, "heartbeat of each run"),
    }),
  ];
}

/** Return the problems by code: five late workers are one thing that needs attention. */
function byCode(problems) {
  const groups = new Map();
  for (const problem of problems) groups.set(problem.code, [...(groups.get(problem.code) ?? []), problem]);
  return groups;
}

const titleOf = (code) => TITLES[code] ?? formatName(code.toLowerCase());

function headline(problems, status) {
  if (problems.size === 0) {
    return h(
      "section",
      { class: "headline good", "aria-label": "State" },
      badge("OK"),
      h("p", {}, h("strong", {}, arrived(status)), " Entitlements flow. Nothing needs a person."),
    );
  }
  return h(
    "section",
    { class: "headline warn", "aria-label": "State" },
    h(
      "div",
      { class: "headline-top" },
      badge("ATTENTION"),
      h(
        "p",
        {},
        h("strong", {}, arrived(status)),
        ` ${oldestOf(status)}${countOf(problems.size, "thing needs", "things need")} attention.`,
      ),
    ),
    h(
      "ul",
      { class: "problems" },
      [...problems].map(([code, group]) => problemItem(code, group)),
    ),
  );
}

const arrived = (status) => `Every change up to ${formatTime(status.settled.through)} has arrived.`;

function oldestOf({ settled }) {
  if (settled.age_seconds < NOTICEABLE_SECONDS) return "";
  return `The oldest later change waits for ${formatSeconds(settled.age_seconds)}: ${STAGES[settled.held_back_by]}. `;
}

function problemItem(code, problems) {
  const [{ since, last_error: error, still_works: works, to_do: todo }] = problems;
  return h(
    "li",
    { "data-code": code },
    h("h2", {}, titleOf(code)),
    problems.map(({ message }) => h("p", {}, asSentence(message))),
    definitions(
      [
        ...(since ? [["Since", timeOf(since)]] : []),
        ...(error && !problems[0].message.includes(error) ? [["Last error", error]] : []),
        ["Still works", works],
        ["What to do", [todo, LINKS[code] && [" ", problemLink(LINKS[code])]]],
      ],
      "rows",
    ),
  );
}

function problemLink([target, text]) {
  if (target.startsWith("#/")) return link(target, text);
  return h(
    "button",
    {
      type: "button",
      class: "text-button",
      onclick: () => document.querySelector(target).scrollIntoView({ block: "start" }),
    },
    text,
  );
}

function tiles(status) {
  const now = Date.parse(status.at);
  const { outbox, stream, notifications, settled, dead_letters: dead } = status;
  const tile = (label, value, name, format, tone = "") =>
    h(
      "div",
      { class: `tile ${tone}` },
      h("p", { class: "tile-label" }, label),
      h("p", { class: "tile-value" }, value),
      sparkline(samples.list, name, label, now, format),
    );
  return h("section", { class: "tiles", "aria-label": "Figures with the last hour" }, [
    tile(
      "Oldest change on its way",
      settled.held_back_by ? formatSeconds(settled.age_seconds) : "None",
      "settled_age_seconds",
      formatSeconds,
    ),
    tile("Pending in the outbox", formatCount(outbox.pending, outbox.capped), "outbox_pending"),
    tile("Consumer lag", lagOf(stream), "consumer_lag"),
    tile("Published per minute", formatCount(outbox.published_last_minute), "published"),
    tile("Sent per minute", formatCount(notifications.sent_last_minute), "sent"),
    tile("Dead letters", formatCount(dead.open, dead.capped), "dead_letters", formatCount, dead.open ? "bad" : ""),
  ]);
}

function lagOf({ consumer_lag: lag, unknown_since: since }) {
  if (lag !== null) return formatCount(lag);
  return ["Unknown", since && h("span", { class: "tile-note" }, "since ", timeOf(since, formatTime))];
}

function waiting({ notifications }) {
  if (notifications.waiting.length === 0) return null;
  const columns = [
    { label: "Last error", kind: "wide", of: (group) => group.cause },
    { label: "Notifications", kind: "number", of: (group) => formatCount(group.count) },
    { label: "Oldest change", of: (group) => timeOf(group.oldest_at) },
    { label: "Next attempt", of: (group) => timeOf(group.next_attempt_at) },
  ];
  return card("Notifications that wait for another attempt", table("Waiting", columns, notifications.waiting), {
    flush: true,
  });
}

function deadLetters(status) {
  const { groups, open, capped } = status.dead_letters;
  const aside = open > 0 && link("#/dead-letters", "All groups");
  if (open === 0) {
    return card(
      "Dead letters",
      emptyState("No open dead letters", "A message that cannot be processed appears here with its cause."),
    );
  }
  const rows = groups
    .slice(0, 5)
    .map((group) =>
      h(
        "li",
        {},
        h(
          "a",
          { href: groupHash(group) },
          h("span", { class: "group-cause" }, group.cause),
          h("span", { class: "quiet" }, `${KIND_NAMES[group.kind]}, last ${formatAgo(group.last_at)}`),
        ),
        h("span", { class: "group-count" }, formatCount(group.count)),
      ),
    );
  return card("Dead letters", h("ul", { class: "group-list" }, rows), {
    aside: [h("span", { class: "quiet" }, `${formatCount(open, capped)} open `), aside],
  });
}

/** Return the address of the list of a group of dead letters. */
export function groupHash(group) {
  return `#/dead-letters/list?${new URLSearchParams({ kind: group.kind, cause: group.cause })}`;
}

function housekeeping(status) {
  const { leases, read_model: model, partitions, schema, commands } = status;
  const lease = ({ held, expired }) => `${formatCount(held)} held${expired ? `, ${formatCount(expired)} expired` : ""}`;
  const differences = model.measured_at
    ? [
        `${formatCount(model.ahead)} ahead, ${formatCount(model.behind)} behind, ${formatCount(model.wrong)} wrong `,
        h("span", { class: "quiet" }, timeOf(model.measured_at)),
      ]
    : "not verified yet";
  return card(
    "Housekeeping",
    definitions([
      ["Read model", differences],
      ["Leases of events", lease(leases.outbox)],
      ["Leases of notifications", lease(leases.notifications)],
      [
        "Commands",
        [
          `${formatCount(commands.pending)} pending, ${formatCount(commands.running)} running`,
          commands.failed_last_day
            ? [", ", link("#/commands?status=FAILED", `${formatCount(commands.failed_last_day)} failed today`)]
            : "",
        ],
      ],
      [
        "Audit partitions",
        [
          `${countOf(partitions.months_ahead, "month")} ahead, to ${partitions.last_month}`,
          partitions.rows_in_default > 0 && `, ${countOf(partitions.rows_in_default, "row")} in default`,
        ],
      ],
      [
        "Schema",
        schema.matches
          ? `version ${schema.version}`
          : [badge("DIFFERS", "bad"), ` has ${schema.version}, expected ${schema.expected}`],
      ],
    ]),
  );
}

function workers(status) {
  if (status.workers.length === 0) {
    return emptyState(
      "No worker has reported yet",
      "Each worker reports after its first step, and then at the end of each run, about once a minute.",
    );
  }
  return table(
    "Workers",
    [
      {
        label: "Worker",
        kind: "wide",
        of: (worker) => [
          h("code", { class: "strong" }, worker.worker),
          worker.error && h("p", { class: "cell-error" }, worker.error),
        ],
      },
      { label: "State", kind: "states", of: (worker) => [badge(worker.outcome), worker.late && [" ", badge("LATE")]] },
      { label: "Last run", of: (worker) => timeOf(worker.finished_at) },
      { label: "Duration", kind: "number", of: (worker) => formatSeconds(worker.duration_ms / 1000) },
      { label: "Result", of: (worker) => h("span", { class: "quiet" }, resultText(worker.result)) },
      { label: "Failures in a row", kind: "number", of: (worker) => formatCount(worker.failures_in_a_row) },
    ],
    status.workers,
  );
}

function resultText(result) {
  const entries = Object.entries(result ?? {}).filter(([, value]) => typeof value === "number" && value !== 0);
  return entries.length
    ? entries
        .slice(0, 3)
        .map(([name, value]) => `${name.replaceAll("_", " ")} ${formatCount(value)}`)
        .join(", ")
    : "nothing to do";
}
