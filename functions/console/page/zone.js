const ZONE_KEY = "grantwire-zone";
const MINUTE_MILLISECONDS = 60_000;

let isUtc = localStorage.getItem(ZONE_KEY) === "utc";
let formatters = makeFormatters();

function makeFormatters() {
  const timeZone = isUtc ? "UTC" : undefined; // undefined is the zone of this computer
  const format = (options) => new Intl.DateTimeFormat("en-GB", { timeZone, ...options });
  return {
    clock: format({ hour: "2-digit", minute: "2-digit", second: "2-digit" }),
    day: format({ day: "numeric", month: "short", year: "numeric" }),
    offset: format({ timeZoneName: "shortOffset" }),
  };
}

/** The zone in which the console shows times, and in which a person types them: UTC, or the one of this computer. */
export const zone = {
  get isUtc() {
    return isUtc;
  },
  /** The short name, as of now: `UTC`, or for example `UTC-5`. */
  get label() {
    if (isUtc) return "UTC";
    const offset = formatters.offset.formatToParts(Date.now()).find((part) => part.type === "timeZoneName").value;
    return offset.replace(/^GMT(?:\+0)?/, "UTC");
  },
  /** The full name, for example `UTC` or `America/New_York`. */
  get name() {
    return formatters.clock.resolvedOptions().timeZone;
  },
  toggle() {
    isUtc = !isUtc;
    localStorage.setItem(ZONE_KEY, isUtc ? "utc" : "local");
    formatters = makeFormatters();
  },
};

/** Return the time of day of a date. */
export function clockOf(date) {
  return formatters.clock.format(date);
}

/** Return the day of a date. */
export function dayOf(date) {
  return formatters.day.format(date);
}

/** Return a time of the API as the value of a `datetime-local` field; empty text if it is no time. */
export function toField(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return ""; // the API says what is allowed
  const offset = isUtc ? 0 : date.getTimezoneOffset() * MINUTE_MILLISECONDS;
  return new Date(date.getTime() - offset).toISOString().slice(0, 16);
}

/** Return the value of a `datetime-local` field as a time of the API. */
export function fromField(text) {
  return new Date(isUtc ? `${text}Z` : text).toISOString();
}
