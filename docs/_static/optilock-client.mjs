// A browser's client of HTTP APIs with ETags: no edit of another client is overwritten.
//
//   import { edit, once } from "./optilock-client.mjs";
//   await edit("/pages/1", (page) => ({ ...page, title: "Home" }));
//   await once("/orders", { goods: "tea" });
//
// It needs no build step and no other file. MIT licence.

/** The member or value that is not there: JSON has no undefined. */
const ABSENT = undefined;
const REMEMBERED = 256;
const UNCLEAR = new Set([429, 500, 502, 503, 504]);
const tags = new Map();

export class ClientError extends Error {
  constructor(message, facts = {}) {
    super(message);
    this.name = new.target.name;
    Object.assign(this, facts);
  }
}
/** No answer came: a write may be stored or not. `key` is that of `once`. */
export class NoAnswer extends ClientError {}
/** The server refused, failed, redirected, or sent no JSON: `status`, `response`. */
export class UnexpectedAnswer extends ClientError {}
/** The server gives no strong ETag that a write could demand. */
export class NoETag extends ClientError {}
/** Both have changed a member: `conflicts` with path, base, mine, theirs; and whole `mine`, `theirs`. */
export class MergeConflict extends ClientError {}

// -- merge ------------------------------------------------------------------------------------------

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const own = (value, name) => (Object.hasOwn(value, name) ? value[name] : ABSENT);

function isSame(one, other) {
  if (Array.isArray(one) && Array.isArray(other)) {
    return one.length === other.length && one.every((value, at) => isSame(value, other[at]));
  }
  if (!isObject(one) || !isObject(other)) return one === other;
  const names = Object.keys(one);
  return (
    names.length === Object.keys(other).length &&
    names.every((name) => Object.hasOwn(other, name) && isSame(one[name], other[name]))
  );
}

/** Three-way merge by member. `settle(conflict)` returns the value of a member that both changed. */
export function merge(base, mine, theirs, settle) {
  const conflicts = [];
  const decide = settle ?? ((conflict) => (conflicts.push(conflict), conflict.theirs));
  const merged = mergeAt([], base, mine, theirs, decide);
  return { merged, conflicts };
}

function mergeAt(path, base, mine, theirs, decide) {
  if (isSame(mine, base) || isSame(mine, theirs)) return theirs;
  if (isSame(theirs, base)) return mine;
  if (![base, mine, theirs].every(isObject)) return decide({ path, base, mine, theirs });
  const names = new Set([...Object.keys(theirs), ...Object.keys(mine)]);
  const members = [...names].map((name) => [
    name,
    mergeAt([...path, name], own(base, name), own(mine, name), own(theirs, name), decide),
  ]);
  return Object.fromEntries(members.filter(([, value]) => value !== ABSENT));
}

// -- requests ---------------------------------------------------------------------------------------

const absolute = (url) => new URL(url, document.baseURI).href;

/** An address for people: without user, password, query and fragment. */
function shown(url) {
  const { origin, pathname } = new URL(absolute(url));
  return origin + pathname;
}

function strongTag(response) {
  const tag = response.headers.get("ETag") ?? "";
  return /^"[!#-~]*"$/.test(tag) ? tag : null;
}

function remember(url, tag) {
  tags.delete(absolute(url));
  if (tag) tags.set(absolute(url), tag);
  if (tags.size > REMEMBERED) tags.delete(tags.keys().next().value);
}

/** Send a request. PUT, PATCH and DELETE demand the version that was read or written last. */
export async function api(method, url, value, headers = {}) {
  const isRead = ["GET", "HEAD"].includes(method);
  const sent = new Headers(headers);
  if (!sent.has("Accept")) sent.set("Accept", "application/json");
  if (value !== ABSENT && !sent.has("Content-Type")) sent.set("Content-Type", "application/json");
  const tag = tags.get(absolute(url));
  const writes = ["PUT", "PATCH", "DELETE"].includes(method);
  if (writes && tag && !sent.has("If-Match") && !sent.has("If-None-Match")) sent.set("If-Match", tag);
  const body = value === ABSENT ? undefined : JSON.stringify(value);
  const address = absolute(url);
  let response;
  try {
    // A cache could answer with an older version, and a login page is no answer to a PUT.
    response = await fetch(address, { method, headers: sent, body, cache: "no-store", redirect: "manual" });
    await response.clone().arrayBuffer(); // all of it has come
  } catch (cause) {
    const text = "no answer came. A write that was sent may be stored or not.";
    throw new NoAnswer(`${method} ${shown(url)}: ${text}`, { cause });
  }
  if (response.ok && (isRead || writes)) {
    remember(url, method === "DELETE" ? null : strongTag(response));
  }
  return response;
}

/** Send a request; the error in place of a lost answer. */
async function answer(...request) {
  try {
    return await api(...request);
  } catch (error) {
    if (error instanceof NoAnswer) return error;
    throw error;
  }
}

const isLost = (given) => given instanceof NoAnswer;
const isUnclear = (given) =>
  isLost(given) ||
  UNCLEAR.has(given.status) ||
  (given.status === 409 && given.headers.has("Retry-After"));

function failure(call, url, given, facts = {}) {
  if (isLost(given)) return Object.assign(given, facts);
  const kind = given.type === "opaqueredirect" ? "a redirect, perhaps to a login" : given.status;
  const next = {
    202: "The server may store it later, or refuse it. Read what is stored before you go on.",
    412: "It was changed after it was read. Read it again, and decide again.",
    428: "The server stores no write without If-Match. Let it send an ETag with each GET.",
  }[given.status];
  const text = `${call}(${shown(url)}): the answer was ${kind}. ${next ?? "Read error.response."}`;
  return new UnexpectedAnswer(text, { status: given.status, response: given, ...facts });
}

/** Wait as long as the server asks, in seconds or until a date, and a little longer by chance. */
async function wait(given, attempt, longest) {
  const asked = (!isLost(given) && given.headers.get("Retry-After")) || "0";
  const seconds = /^\d+$/.test(asked) ? Number(asked) : (Date.parse(asked) - Date.now()) / 1000;
  if (seconds > longest) return false;
  const chance = Math.random() * Math.min(2, 0.05 * 2 ** attempt);
  await new Promise((go) => setTimeout(go, 1000 * (Math.max(0, seconds || 0) + chance)));
  return true;
}

/** Send the same request until the answer is clear. */
async function ask(call, request, { attempts = 10, longestWait = 60 }, facts) {
  for (let attempt = 0; ; attempt++) {
    const given = await answer(...request);
    if (!isUnclear(given)) return given;
    if (attempt + 1 >= attempts || !(await wait(given, attempt, longestWait))) {
      throw failure(call, request[1], given, facts);
    }
  }
}

async function read(call, url, options) {
  const response = await ask(call, ["GET", url], options);
  if (response.status !== 200) throw failure(call, url, response);
  try {
    return { value: await response.clone().json(), tag: strongTag(response) };
  } catch {
    throw failure(call, url, response); // no JSON
  }
}

// -- calls ------------------------------------------------------------------------------------------

/**
 * Read, change, write with If-Match; if another client was first, merge both and write again.
 * `change` takes a copy. It returns the new value, or changes the copy and returns nothing.
 *
 * Options: `seen`, what the user has seen, which `change` begins with (by default it is read now);
 * `settle(conflict)`, which decides a member that both changed; `unconditional`, to write without
 * an ETag, too, so that the last write wins; `attempts`, `longestWait` in seconds.
 */
export async function edit(url, change, options = {}) {
  const { seen, settle, unconditional = false, attempts = 10, longestWait = 60 } = options;
  let found = await read("edit", url, options);
  const base = structuredClone(seen === undefined ? found.value : seen);
  const copy = structuredClone(base);
  const mine = (await change(copy)) ?? copy;
  let lost = "";
  for (let attempt = 0; ; attempt++) {
    const theirs = found.value;
    const { merged, conflicts } = merge(base, mine, theirs, settle);
    if (conflicts.length) {
      const names = conflicts.map(({ path }) => path.join(".") || "the whole value").join(", ");
      const text = `another change of ${names} was first, to another value.${lost}`;
      throw new MergeConflict(`edit(${shown(url)}): ${text}`, { conflicts, mine, theirs });
    }
    if (isSame(merged, theirs)) return theirs; // also: an earlier request has stored it
    if (!found.tag && !unconditional) {
      const text = "has no strong ETag that a script may read, so a write could overwrite an unseen";
      throw new NoETag(`edit(${shown(url)}): it ${text} change. Nothing was written.`);
    }
    const demand = found.tag ? { "If-Match": found.tag } : {};
    const given = await answer("PUT", url, merged, demand);
    if (!isLost(given) && given.ok && given.status !== 202) return merged; // 202: perhaps later
    if (isUnclear(given)) lost = " An earlier request, whose answer was lost, may be that change.";
    const goesOn = isUnclear(given) || [409, 412].includes(given.status);
    if (!goesOn || attempt + 1 >= attempts || !(await wait(given, attempt, longestWait))) {
      throw failure("edit", url, given);
    }
    const before = found.tag;
    found = await read("edit", url, options);
    const isOther = given.status === 409 && !isUnclear(given); // perhaps no other writer
    if (isOther && found.tag === before) throw failure("edit", url, given);
  }
}

/** POST with one Idempotency-Key for all attempts: a server that knows such keys does it once. */
export async function once(url, value, { key = crypto.randomUUID(), ...options } = {}) {
  const request = ["POST", url, value, { "Idempotency-Key": `"${key}"` }];
  const response = await ask("once", request, options, { key });
  if (!response.ok) throw failure("once", url, response, { key });
  return response;
}

// -- forms ------------------------------------------------------------------------------------------

const NOT_KEPT = new Set(["password", "file", "submit", "button", "reset", "image"]);

/**
 * Keep what was typed into a form over a login, a reload or a crash, in this tab.
 *
 * Hidden fields are not kept, because tokens against forgery change, except `seen`: the text comes
 * back together with the version that it was typed for. Call `forget(name)` when it is stored.
 */
export function keep(form, name = location.pathname) {
  const place = `optilock:${name}`;
  const fields = () =>
    [...form.elements].filter(
      ({ name, type }) => name && !NOT_KEPT.has(type) && (type !== "hidden" || name === "seen"),
    );
  const kept = JSON.parse(sessionStorage.getItem(place) ?? "null");
  fields().forEach((field, at) => {
    const [of, value] = kept?.[at] ?? [];
    if (of !== field.name) return;
    if (["checkbox", "radio"].includes(field.type)) field.checked = value;
    else if (field.options) for (const one of field.options) one.selected = value.includes(one.value);
    else field.value = value;
  });
  const store = () => sessionStorage.setItem(place, JSON.stringify(fields().map(valueOf)));
  form.addEventListener("input", store);
  form.addEventListener("change", store);
}

function valueOf(field) {
  if (["checkbox", "radio"].includes(field.type)) return [field.name, field.checked];
  if (field.options) return [field.name, [...field.selectedOptions].map((one) => one.value)];
  return [field.name, field.value];
}

/** Forget what `keep` has kept under this name: it is stored now, or not wanted. */
export function forget(name = location.pathname) {
  sessionStorage.removeItem(`optilock:${name}`);
}
