// Puts each page into one file that works from `file://`: styles, script and core are inside.
import { build } from "esbuild";
import { mkdir, readFile, writeFile } from "node:fs/promises";

const [, , out] = process.argv;
const bundled = async (entry, search = "") => {
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "iife",
    globalName: "tollgate",
    target: "es2023",
    loader: { ".wasm": "binary" },
    // The core is started with the bytes that are inside, never by its address.
    // The worker that searches is started with its script, which is inside, too.
    define: { "import.meta.url": '""', SEARCH: JSON.stringify(search) },
    write: false,
  });
  return outputFiles[0].text;
};
const search = await bundled("ts/search.ts");
const style = await readFile("page/style.css", "utf8");
await mkdir(out, { recursive: true });
for (const [name, entry] of [["index", "playground"], ["client", "client"]]) {
  const script = (await bundled(`ts/${entry}.ts`, search)).replaceAll("</script", "<\\/script");
  const page = (await readFile(`page/${name}.html`, "utf8"))
    .replace("/* style */", () => style)
    .replace("/* script */", () => script);
  await writeFile(`${out}/${name}.html`, page);
}
// The core alone, for the tests, and what draws the pictures of the guides.
for (const name of ["core", "pictures"]) await writeFile(`../target/web/${name}.js`, await bundled(`ts/${name}.ts`));
