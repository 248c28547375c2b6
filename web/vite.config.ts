import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

const FOLDER = join(import.meta.dirname, "../archetype/apps/serve/page");

/** Write the licences of everything that is bundled into one file beside the page. */
function licences(): Plugin {
  return {
    name: "licences",
    generateBundle() {
      const texts = new Map<string, string>();
      for (const id of this.getModuleIds()) {
        const folder = id.replace(/^\0/, "").match(/^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//)?.[1];
        if (!folder || texts.has(folder)) continue;
        const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
        const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
        texts.set(folder, `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), "utf8") : ""}`);
      }
      const source = [...texts.values()].sort().join("\n" + "-".repeat(80) + "\n");
      this.emitFile({ type: "asset", fileName: "licenses.txt", source });
    },
  };
}

/** Write each asset once more, compressed; the server sends that where a browser takes it. */
function precompressed(): Plugin {
  return {
    name: "precompressed",
    writeBundle({ dir }, bundle) {
      for (const name of Object.keys(bundle)) {
        const file = join(dir ?? dirname(FOLDER), name);
        if (name.startsWith("assets/")) writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  plugins: [svelte(), licences(), precompressed()],
  html: { cspNonce: "{{nonce}}" }, // the server puts a new one into every answer
  build: { outDir: FOLDER, emptyOutDir: true, target: "es2022", assetsInlineLimit: 0, reportCompressedSize: false },
  server: { proxy: { "/v1": "http://127.0.0.1:8000", "/api": "http://127.0.0.1:8000" } },
});
