import { actorFields, busy, keyKeeper, readActor } from "./actions.js";
import { get, post } from "./api.js";
import { needsScope, scopeNote } from "./caller.js";
import {
  badge,
  card,
  definitions,
  emptyState,
  field,
  idWithCopy,
  jsonText,
  link,
  openDialog,
  pageHead,
  select,
  table,
  timeOf,
} from "./components.js";
import { h } from "./dom.js";
import { formatCount, formatName, formatSeconds, formatTime, shortId } from "./format.js";
import { showLive } from "./live.js";
import { commandProgress, follow } from "./progress.js";

const STATUSES = [
  ["", "All"],
  ["PENDING", "Pending"],
  ["RUNNING", "Running"],
  ["DONE", "Done"],
  ["FAILED", "Failed"],
];

/** Show what operators have asked the system to do, and how far it is. */
export function showCommands(main, query) {
  const status = query.get("status") ?? "";
  const pages = { count: 1 };
  const choose = select("status", STATUSES, status);
  choose.addEventListener(
    "change",
    () => (location.hash = choose.value ? `#/commands?status=${choose.value}` : "#/commands"),
  );
  main.append(
    pageHead(
      "Commands",
      "Long actions of operators. A worker executes them in the background, and resumes one that was interrupted.",
      readModelButton("verify"),
      readModelButton("rebuild"),
    ),
    scopeNote("ops:write", "Verify and rebuild"),
    h("form", { class: "filters", "aria-label": "Filters" }, field("Status", choose)),
  );
  const more = () => {
    pages.count += 1;
    refresh();
  };
  const refresh = showLive(
    main,
    () => loadCommands(status, pages.count),
    (data) => renderCommands(data, more),
    { every: 3000, scope: "ops:read" },
  );
}

async function loadCommands(status, count) {
  const list = [];
  let cursor = "";
  for (let page = 0; page < count; page += 1) {
    const data = await get("/v1/ops/commands", { status, limit: 50, cursor });
    list.push(...data.commands);
    cursor = data.next_cursor ?? "";
    if (!cursor) break;
  }
  return { list, cursor };
}

function renderCommands({ list, cursor }, more) {
  if (list.length === 0) {
    return card(
      "List",
      emptyState(
        "No commands",
        "A redrive, a discard, a verification or a rebuild appears here when an operator asks for it.",
      ),
    );
  }
  return card(
    "List",
    [
      table(
        "Commands",
        [
          {
            label: "Command",
            kind: "wide",
            of: (command) => [
              h("a", { href: `#/commands/${command.command_id}`, class: "strong" }, formatName(command.kind)),
              h("p", { class: "quiet" }, command.reason),
            ],
          },
          { label: "Status", of: (command) => badge(command.status) },
          { label: "Done", kind: "number", of: progressText },
          { label: "Actor", of: (command) => command.actor },
          { label: "Created", of: (command) => timeOf(command.created_at) },
        ],
        list,
      ),
      cursor
        ? h(
            "p",
            { class: "table-more" },
            h("button", { type: "button", class: "button", "data-key": "more", onclick: more }, "Show more"),
          )
        : null,
    ],
    { flush: true },
  );
}

function progressText(command) {
  const { selected, done } = command.progress;
  return command.kind.startsWith("dead_letters") ? `${formatCount(done)} of ${formatCount(selected)}` : "–";
}

/** Show one command. */
export function showCommand(main, id) {
  main.append(
    h(
      "nav",
      { "aria-label": "Breadcrumb", class: "crumbs" },
      link("#/commands", "Commands"),
      " / ",
      h("span", { "aria-current": "page" }, shortId(id)),
    ),
    pageHead("Command", null),
  );
  showLive(main, () => get(`/v1/ops/commands/${encodeURIComponent(id)}`), renderCommand, {
    every: 2000,
    scope: "ops:read",
  });
}

function renderCommand(command) {
  const took =
    command.started_at && command.finished_at
      ? (Date.parse(command.finished_at) - Date.parse(command.started_at)) / 1000
      : null;
  return h("div", { class: "columns" }, [
    card("Progress", h("div", { class: "stack" }, commandProgress(command))),
    card(
      "Facts",
      definitions([
        ["Actor", command.actor],
        ["Reason", command.reason],
        ["Source", command.source],
        ["Created", timeOf(command.created_at, formatTime)],
        ["Started", timeOf(command.started_at, formatTime)],
        ["Finished", timeOf(command.finished_at, formatTime)],
        ["Duration", took === null ? null : formatSeconds(took)],
        ["Failed attempts", formatCount(command.attempts)],
        ["Command", idWithCopy(command.command_id, "command id")],
      ]),
    ),
    card("Arguments", jsonText(command.arguments)),
    command.result && card("Result", jsonText(command.result)),
  ]);
}

const READ_MODEL = {
  verify: {
    title: "Verify the read model",
    text: "Compares every row with the system of record. Nothing is changed.",
    action: "Verify",
  },
  rebuild: {
    title: "Rebuild the read model",
    text:
      "Repairs every row that differs from the system of record, and removes rows that do not belong there. " +
      "Summaries stay readable.",
    action: "Rebuild",
  },
};

function readModelButton(kind) {
  const { action } = READ_MODEL[kind];
  const properties = { type: "button", class: "button", "data-key": kind, onclick: () => openReadModel(kind) };
  return needsScope("ops:write", h("button", properties, `${action} read model…`));
}

function openReadModel(kind) {
  const { title, text, action } = READ_MODEL[kind];
  const problem = h("div");
  const keyFor = keyKeeper();
  const form = h(
    "form",
    { class: "stack" },
    h("p", {}, text),
    actorFields(),
    h("div", { class: "dialog-actions" }, h("button", { type: "submit", class: "button primary" }, action)),
  );
  const { body, close } = openDialog(title, [problem, form]);
  form.querySelector("input").focus();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = readActor(form);
    await busy(form, problem, async () =>
      follow(body, (await post(`/v1/ops/read-model/${kind}`, request, keyFor(request))).command_id, close),
    );
  });
}
