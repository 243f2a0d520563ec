// Talk to the server that the page came from. A token, where one is needed, is kept for this tab.

const KEY = "unmask-token";

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keepToken = (token) => sessionStorage.setItem(KEY, token);

/** GET a path, or POST a body to it; return the JSON response, or throw a Refusal with the server's message. */
export async function ask(path, body) {
  return (await fetched(path, body)).json();
}

/** POST a body and yield the events of the response as JSON. Leaving the loop cancels the request. */
export async function* stream(path, body) {
  const reader = (await fetched(path, body)).body.pipeThrough(new TextDecoderStream()).getReader();
  const incomplete = () => new Refusal(0, "The response is incomplete. Try again.");
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => { throw incomplete(); });
      if (done) throw incomplete();
      const parts = (buffer + value).split("\n\n");
      buffer = parts.pop();
      for (const part of parts) {
        const event = JSON.parse(part.replace(/^data: /, ""));
        if (event.error) throw new Refusal(0, event.error);
        if (event.done) return;
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function fetched(path, body) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refusal(0, "The server does not respond. Check that it is still running.");
  }
  if (!response.ok) {
    const payload = await response.json().catch(() => null);
    const message = payload?.error?.message ?? payload?.error ?? response.statusText;
    throw new Refusal(response.status, `${message}`);
  }
  return response;
}
