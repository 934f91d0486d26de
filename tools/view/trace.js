"use strict";
const tracePage = {title: "Trace", path: "/trace", async draw(view) {}};
