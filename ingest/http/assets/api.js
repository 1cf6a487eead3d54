// Talks to the endpoint. The session is a cookie that no script sees; what acts also carries the session's second secret.

export class Problem extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `HTTP ${status}`);
    this.status = status;
    this.code = told.code || "";
    this.field = told.field || "";
  }
}

let csrf = "";
const listeners = {over: () => {}, reachable: () => {}};
//: An edge that takes longer is told to be silent. Actions may be large, and are given more.
const ANSWER_MS = 8000;
const ACT_MS = 120_000;
/** When the edge was heard last; 0: never. */
export let heard_ms = 0;

/** over(): the session has ended. reachable(yes): whether the endpoint answers. */
export function listen(given) {
  Object.assign(listeners, given);
}

export async function call(method, path, {query, body, signal} = {}) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) if (value !== "" && value != null) url.searchParams.set(name, value);
  const headers = {accept: "application/json"};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && csrf) headers["x-escrow-csrf"] = csrf;
  const limit = AbortSignal.timeout(method === "GET" ? ANSWER_MS : ACT_MS);
  let response, told;
  try {
    response = await fetch(url, {method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: signal ? AbortSignal.any([signal, limit]) : limit, cache: "no-store"});
    told = await response.json().catch((error) => { if (limit.aborted || signal?.aborted) throw error; return {}; });
  } catch (error) {
    if (!signal?.aborted) listeners.reachable(false);
    throw error;
  }
  heard_ms = Date.now();
  listeners.reachable(true);
  if (response.ok) return told;
  if (response.status === 401 && !path.startsWith("/console/")) listeners.over();
  throw new Problem(response.status, told);
}

export const get = (path, query, signal) => call("GET", path, {query, signal});

export async function session() {
  return remember(await get("/console/session"));
}

export async function log_in(token) {
  return remember(await call("POST", "/console/session", {body: {token}}));
}

export async function log_out() {
  remember(await call("DELETE", "/console/session"));
}

function remember(found) {
  csrf = found.csrf;
  return found;
}

export const act = (body) => call("POST", "/v1/operator/actions", {body});

/** Calls f now and again every ms, while somebody looks, until the signal. Errors are the endpoint's to tell: see listen. */
export function repeat(f, ms, signal) {
  let timer = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) await f().catch((error) => error.name === "AbortError" || error instanceof Problem || console.debug(error.message));
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  const seen = () => document.hidden || turn();
  document.addEventListener("visibilitychange", seen, {signal});
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
}
