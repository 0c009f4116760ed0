// Elements are built from text only. Nothing in the console turns a string into HTML, and the
// Content-Security-Policy (trusted types) forbids it.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Return an HTML element. `on…` properties are listeners, null and false properties are left out. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Return an SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Replace the content of a container. The element with the focus keeps it if the new content has its equal. */
export function replaceContent(container, ...content) {
  const focused = container.contains(document.activeElement) ? focusKey(document.activeElement) : null;
  const open = new Set([...container.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  container.replaceChildren(...content.flat(Infinity).filter(Boolean));
  for (const details of container.querySelectorAll("details[data-key]")) {
    if (open.has(details.dataset.key)) details.open = true;
  }
  if (!focused) return;
  for (const element of container.querySelectorAll("a, button, input, select, textarea, summary, [tabindex]")) {
    if (focusKey(element) === focused) {
      element.focus({ preventScroll: true });
      return;
    }
  }
}

function focusKey(element) {
  const own = element.dataset.key || element.id || element.getAttribute("href") || element.textContent;
  return `${element.tagName} ${own}`;
}

/** Return whether the user has selected text in a container, which a refresh would deselect. */
export function hasSelection(container) {
  const selection = document.getSelection();
  return !selection.isCollapsed && container.contains(selection.anchorNode);
}

let announcedText = "";

/** Let screen readers say a text. Saying the same text again in a row is left out. */
export function announce(text) {
  if (text === announcedText) return;
  announcedText = text;
  document.getElementById("announcer").textContent = text;
}
