// The package for clients of an API.
export type { Fields } from "./fields.js";
export * from "./mirror.js";
export * from "./mirrors.js";
