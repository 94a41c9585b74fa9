#!/usr/bin/env node
console.log(require("./index.js").words(process.argv.slice(2).join(" ")));
