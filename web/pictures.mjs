// Draws the pictures of the guides.
import { readFile, writeFile } from "node:fs/promises";

/** The pictures by their names in `docs`. */
export async function drawn() {
  const script = await readFile(new URL("../target/web/pictures.js", import.meta.url), "utf8");
  return new Function(`${script}; return tollgate.pictures();`)();
}

if (process.argv[2] === "--write") {
  for (const [name, picture] of Object.entries(await drawn())) {
    await writeFile(new URL(`../docs/${name}`, import.meta.url), picture);
  }
}
