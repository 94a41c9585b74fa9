const fs = require("fs");
fs.mkdirSync("dist", { recursive: true });
fs.writeFileSync("dist/index.js", fs.readFileSync(require.resolve("counting")));
