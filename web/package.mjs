// Builds the package for clients of an API, but for its types: each entry is one module without imports but React.
import { build } from "esbuild";

await build({
  entryPoints: { index: "ts/index.ts", "mirror-react": "ts/mirror-react.ts" },
  outdir: "dist",
  bundle: true,
  external: ["react"],
  format: "esm",
  target: "es2022",
});
