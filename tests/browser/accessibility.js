/** Return what a person with a screen reader, weak sight or a keyboard could not use on this page. */
function findProblems() {
  const problems = [];
  const visible = (element) => element.checkVisibility({ checkVisibilityCSS: true });
  const labels = (element) => [...(element.labels ?? [])].map((label) => label.textContent).join(" ");
  const nameOf = (element) =>
    (element.getAttribute("aria-label") || labels(element) || element.textContent || element.title).trim();
  const controls = "a, button, input, select, summary, [role=img], [role=group], dialog";
  for (const element of document.querySelectorAll(controls)) {
    if (visible(element) && !nameOf(element) && !element.getAttribute("aria-labelledby")) {
      problems.push(`no name: ${element.outerHTML.slice(0, 90)}`);
    }
  }
  if (document.querySelectorAll("h1").length !== 1) problems.push("not exactly one h1");
  for (const part of ["header", "main", "nav"]) if (!document.querySelector(part)) problems.push(`no ${part}`);
  if (!document.documentElement.lang || !document.title) problems.push("no language or title");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`id twice: ${id}`);
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) problems.push(`${width} px wide`);

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const toRgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  const backgroundOf = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = toRgba(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  for (const element of document.querySelectorAll("body *:not(svg *)")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!hasText || !visible(element) || element.closest(":disabled, .visually-hidden, .skip-link, .stale")) continue;
    const [one, other] = [luminance(toRgba(getComputedStyle(element).color)), luminance(backgroundOf(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(1)}: ${element.textContent.trim().slice(0, 40)}`);
  }
  return problems;
}
