/** The state of the web UI, stored in the hash of its address: `/screen?name=value&...`. */
export interface Address {
  screen: string;
  values: Record<string, string>;
}

/** Parse the hash of an address. */
export function parseHash(hash: string): Address {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { screen: decodeURIComponent(path), values: Object.fromEntries(new URLSearchParams(query)) };
}

/** Write the hash of an address, without empty values. */
export function formatHash({ screen, values }: Address): string {
  const pairs = Object.entries(values).filter(([, value]) => value !== "");
  const query = new URLSearchParams(pairs).toString();
  return `#/${encodeURIComponent(screen)}${query && `?${query}`}`;
}

/** Compress a text into a short address value, in URL-safe base64. */
export async function packText(text: string): Promise<string> {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const base64 = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Decompress a value of `packText`. */
export async function unpackText(value: string): Promise<string> {
  const binary = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}
