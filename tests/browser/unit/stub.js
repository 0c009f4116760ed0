/** Replace `fetch`: a request waits until the test answers it. Everything is a microtask, so no answer comes late. */
function stubFetch({ token, actor }) {
  if (location.protocol !== "https:") return; // an empty page, before the console is opened
  sessionStorage.setItem("grantwire-token", token);
  sessionStorage.setItem("grantwire-actor", actor);
  const sent = [];

  globalThis.fetch = (address, { method, headers, body = null }) => {
    const { pathname, searchParams } = new URL(address, location.href);
    const request = {
      method,
      path: pathname,
      query: Object.fromEntries(searchParams),
      headers,
      body: JSON.parse(body),
    };
    return new Promise((resolve, reject) => {
      sent.push({ request, resolve, reject, isTaken: false });
    });
  };

  globalThis.stub = {
    /** Return the number of the oldest request of a route that was not taken, and the request. */
    take(method, path) {
      const number = sent.findIndex(
        ({ request, isTaken }) => !isTaken && request.method === method && request.path === path,
      );
      if (number === -1) return null;
      sent[number].isTaken = true;
      return { number, ...sent[number].request };
    },
    /** Answer the requests of a route that were not taken. */
    answerAll(method, path, status, text) {
      for (let found = this.take(method, path); found; found = this.take(method, path)) {
        this.answer(found.number, status, text);
      }
    },
    count: (method, path) => sent.filter(({ request }) => request.method === method && request.path === path).length,
    answer(number, status, text) {
      const headers = new Headers({ "Content-Type": "application/json" });
      sent[number].resolve({ ok: status < 400, status, headers, text: async () => text });
    },
    /** Change the address, and wait until the console has shown its page. */
    moveTo(hash) {
      return new Promise((resolve) => {
        addEventListener("hashchange", resolve, { once: true });
        location.hash = hash;
      });
    },
    lose: (number) => sent[number].reject(new TypeError("Failed to fetch")),
  };
}
