import { newKey, post, session } from "./api.js";
import { code, field, notice, openDialog } from "./components.js";
import { h } from "./dom.js";
import { failureNotice } from "./failures.js";
import { countOf, formatCount } from "./format.js";
import { follow, skippedList } from "./progress.js";
import { loadRecent, noticesAbout } from "./recent.js";

const SHOWN_IDS = 8;
const VERBS = {
  redrive: {
    name: "Redrive",
    doing: "redriven",
    text: "They are processed again. A redrive that is repeated does no harm.",
  },
  discard: {
    name: "Discard",
    doing: "discarded",
    text: "They are closed for good and never delivered. This cannot be undone.",
  },
};

/** Return the fields for who acts and why, which every change records. */
export function actorFields() {
  return [
    field(
      "Your name",
      h("input", {
        name: "actor",
        required: true,
        maxlength: 500,
        value: session.actor,
        autocomplete: "name",
        pattern: ".*\\S.*",
      }),
      "Recorded with the action.",
    ),
    field(
      "Reason",
      h("input", { name: "reason", required: true, maxlength: 500, pattern: ".*\\S.*", autocomplete: "off" }),
      "Why you do this, for the people who read the record later.",
    ),
  ];
}

/** Return actor and reason of a form, and keep the actor for the next one. */
export function readActor(form) {
  session.actor = form.elements.actor.value.trim();
  return { actor: session.actor, reason: form.elements.reason.value.trim() };
}

/** Return a function that gives a request its key: the same request keeps its key, so that a repeat has no effect. */
export function keyKeeper() {
  let sent = { text: "", key: "" };
  return (request) => {
    const text = JSON.stringify(request);
    if (text !== sent.text) sent = { text, key: newKey() };
    return sent.key;
  };
}

/** Return the content of a form as an object; empty fields are left out, `numbers` are numbers. */
export function readFields(form, names, numbers = []) {
  const given = names.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, numbers.includes(name) ? Number(value) : value]));
}

/**
 * Ask for actor and reason, show what would happen, ask for confirmation, and follow the command.
 * `selection` is the part of the request that selects dead letters, `text` says which.
 */
export function openDeadLetterAction(action, selection, text) {
  const verb = VERBS[action];
  const form = h(
    "form",
    { class: "stack" },
    h("p", {}, text),
    h("p", { class: "quiet" }, verb.text),
    actorFields(),
    h(
      "details",
      { class: "more" },
      h("summary", {}, "More options"),
      h(
        "div",
        { class: "field-row" },
        field(
          "At most",
          h("input", { name: "limit", type: "number", min: 1, max: 100000, inputmode: "numeric" }),
          "Dead letters, all if empty.",
        ),
        field(
          "Per second",
          h("input", { name: "rate", type: "number", min: 1, max: 10000, inputmode: "numeric" }),
          "As fast as possible if empty.",
        ),
      ),
      action === "redrive" &&
        h(
          "label",
          { class: "check" },
          h("input", { type: "checkbox", name: "force" }),
          h("span", {}, "Also those that inbox or audit may no longer know. A receiver may then see one twice."),
        ),
    ),
    h(
      "div",
      { class: "dialog-actions" },
      h("button", { type: "submit", class: "button primary" }, "Preview"),
      h("span", { class: "quiet" }, "Nothing changes yet."),
    ),
  );
  const problem = h("div");
  const keyFor = keyKeeper();
  const { body, close } = openDialog(`${verb.name} dead letters`, [problem, form]);
  form.elements[session.actor ? "reason" : "actor"].focus();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = { ...selection, ...readActor(form), ...readFields(form, ["limit", "rate"], ["limit", "rate"]) };
    if (form.elements.force?.checked) request.force = true;
    await busy(form, problem, async () => {
      const [preview, recent] = await Promise.all([
        post(`/v1/ops/dead-letters/${action}`, { ...request, dry_run: true }, newKey()),
        loadRecent(),
      ]);
      const others = noticesAbout(selection, recent);
      showPreview(body, preview, { action, request, selection, others, keyFor, form, problem, close });
    });
  });
}

/** Run `work` while a form is disabled, and show its failure. */
export async function busy(form, problem, work, scope = "ops:write") {
  const buttons = [...form.querySelectorAll("button")];
  buttons.forEach((button) => (button.disabled = true));
  form.setAttribute("aria-busy", "true");
  problem.replaceChildren();
  try {
    await work();
  } catch (error) {
    problem.replaceChildren(failureNotice(error, scope));
    problem.scrollIntoView?.({ block: "nearest" });
  } finally {
    buttons.forEach((button) => (button.disabled = false));
    form.removeAttribute("aria-busy");
  }
}

function showPreview(body, preview, { action, request, selection, others, keyFor, form, problem, close }) {
  const verb = VERBS[action];
  const count = preview.would_change;
  const selected = countOf(preview.selected, "selected dead letter", "selected dead letters", preview.more);
  const confirm = h(
    "button",
    { type: "submit", class: `button ${action === "discard" ? "danger" : "primary"}` },
    `${verb.name} ${countOf(count, "dead letter", "dead letters", preview.more)}`,
  );
  const understood =
    action === "discard" &&
    h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", required: true }),
      h("span", {}, `I understand that ${count === 1 && !preview.more ? "it is" : "they are"} never delivered.`),
    );
  const goBack = () => {
    body.replaceChildren(problem, form);
    form.elements.reason.focus();
  };
  const confirmation = h(
    "form",
    { class: "stack", id: "preview" },
    others,
    h(
      "p",
      { class: "preview-count", tabindex: "-1" },
      h("strong", {}, formatCount(count, preview.more)),
      ` of ${selected} would be ${verb.doing}.`,
    ),
    skippedList(preview.skipped),
    preview.ids.length > 0 &&
      h(
        "details",
        {},
        h("summary", {}, "Which ones"),
        h(
          "ul",
          { class: "id-list" },
          preview.ids.slice(0, SHOWN_IDS).map((id) => h("li", {}, code(id))),
        ),
        preview.ids.length > SHOWN_IDS &&
          h("p", { class: "quiet" }, `and ${formatCount(preview.ids.length - SHOWN_IDS, preview.more)} more`),
      ),
    count === 0 &&
      notice("warn", "Nothing would change", "The reasons are above. Change the selection or the options."),
    count > 0 && understood,
    h(
      "div",
      { class: "dialog-actions" },
      count > 0 && confirm,
      h("button", { type: "button", class: "button", onclick: goBack }, "Back"),
    ),
  );
  confirmation.addEventListener("submit", async (event) => {
    event.preventDefault();
    await busy(confirmation, problem, async () => {
      const accepted = await post(`/v1/ops/dead-letters/${action}`, request, keyFor(request));
      follow(body, accepted.command_id, close, selection);
    });
  });
  problem.replaceChildren();
  body.replaceChildren(problem, confirmation);
  confirmation.querySelector(".preview-count").focus();
}
