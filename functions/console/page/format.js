import { clockOf, dayOf } from "./zone.js";

const INTEGER = new Intl.NumberFormat("en");
const MINUTE = 60;
const HOUR = 3600;
const DAY_SECONDS = 86400;

/** Return a count as text: `1,234`, `10,000+` if counting stopped there, `–` if it is not known. */
export function formatCount(value, capped = false) {
  return value === null || value === undefined ? "–" : `${INTEGER.format(value)}${capped ? "+" : ""}`;
}

/** Return a number of things: `1 event`, `2 events`. */
export function countOf(value, singular, plural = `${singular}s`, capped = false) {
  return `${formatCount(value, capped)} ${value === 1 && !capped ? singular : plural}`;
}

/** Return a duration as text with one unit, or two for hours and days: `120 ms`, `4.2 s`, `3 min`, `2 h 5 min`. */
export function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const rounded = Math.round(seconds);
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (rounded < MINUTE) return `${rounded} s`;
  if (rounded < 10 * MINUTE) return twoUnits(rounded, MINUTE, "min", 1, "s");
  if (rounded < HOUR) return `${Math.floor(rounded / MINUTE)} min`;
  if (rounded < DAY_SECONDS) return twoUnits(rounded, HOUR, "h", MINUTE, "min");
  return twoUnits(rounded, DAY_SECONDS, "d", HOUR, "h");
}

function twoUnits(seconds, large, largeName, small, smallName) {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** Return how long ago a time of the API was, or how far ahead it is, on the clock of this computer. */
export function formatAgo(time, now = Date.now()) {
  if (!time) return "never";
  const seconds = (now - Date.parse(time)) / 1000;
  if (seconds < -1) return `in ${formatSeconds(-seconds)}`;
  return seconds < 1 ? "just now" : `${formatSeconds(Math.floor(seconds))} ago`;
}

/** Return a time of the API in the zone of the console, with the date if it is not today. */
export function formatTime(time, now = new Date()) {
  if (!time) return "–";
  const date = new Date(time);
  return dayOf(date) === dayOf(now) ? clockOf(date) : `${dayOf(date)}, ${clockOf(date)}`;
}

const TIME = /\d{4}-\d{2}-\d{2}T[\d:.]+Z/g;

/** Return a message of the API with its times in the zone of the console. */
export function withTimes(text) {
  return text.replaceAll(TIME, (time) => formatTime(time));
}

/** Return a number of milliseconds from the start: `0`, `+12 ms`, `+1.2 s`. */
export function formatOffset(milliseconds) {
  return milliseconds < 0.05 ? "0" : `+${formatSeconds(milliseconds / 1000)}`;
}

/** Return a name of the API as text: `dead_letters.redrive` becomes `Dead letters: redrive`. */
export function formatName(name) {
  return capitalized(name.replaceAll("_", " ").replace(".", ": "));
}

/** Return a text with a capital letter at its beginning. */
export function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Return a message of the API as a sentence. A name at its beginning, such as relay_outbox, stays as it is. */
export function asSentence(text) {
  return `${/^\w*_/.test(text) ? text : capitalized(text)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** Return the short form of an id, for tables. The whole id is in the link or the title. */
export function shortId(id) {
  return id.length > 13 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id;
}
