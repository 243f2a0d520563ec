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
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refusal(0, "The server does not answer. Is it still running?");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) {
    const said = answer?.error?.message ?? answer?.error ?? response.statusText;
    throw new Refusal(response.status, `${said}`);
  }
  return answer;
}
