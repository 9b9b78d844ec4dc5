// Builds the package for clients of an API, but for its types: each entry is one module without imports but React.
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";

await build({
  entryPoints: { index: "ts/index.ts", "mirror-react": "ts/mirror-react.ts" },
  outdir: "dist",
  bundle: true,
  external: ["react"],
  format: "esm",
  target: "es2022",
});
for (const name of ["LICENSE-APACHE", "LICENSE-MIT"]) await copyFile(`../${name}`, `dist/${name}`);
// What is bundled is a copy, and its licence asks to come along.
await copyFile("node_modules/structured-headers/LICENSE", "dist/LICENSE-structured-headers");
