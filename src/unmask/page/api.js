// Talk to the server that the page came from. A token, where one is needed, is kept for this tab.

const KEY = "unmask-token";

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keepToken = (token) => sessionStorage.setItem(KEY, token);

/** GET a path, or POST it a body; the answer as JSON, or a Refusal in the server's words. */
export async function ask(path, body) {
  return (await fetched(path, body)).json();
}

/** POST a body; the events of the answer as they come, each as JSON. Leaving the loop ends it. */
export async function* stream(path, body) {
  const reader = (await fetched(path, body)).body.pipeThrough(new TextDecoderStream()).getReader();
  const early = () => new Refusal(0, "The answer ended early. Ask again.");
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch(() => { throw early(); });
      if (done) throw early();
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
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
    throw new Refusal(0, "The server does not answer. Is it still running?");
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    const said = answer?.error?.message ?? answer?.error ?? response.statusText;
    throw new Refusal(response.status, `${said}`);
  }
  return response;
}
