"use strict";
// The routes of ROUTES.md: asked of the server, or of the data in this file when the page was written with --html.

const api = {
    file: null
}; // {routes, frames, left_out} of the file; null: there is a server

class ApiError extends Error {
    constructor(text, code, column) {
        super(text);
        this.code = code;     // of HTTP; 0: no answer
        this.column = column; // of the condition, null: the mistake is elsewhere
    }
}

function apiOpen() {
    const data = document.getElementById("data");
    if (data) api.file = JSON.parse(data.textContent);
}

// `path` with those parameters that have a value.
function apiAddress(path, parameters) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters || {}))
        if (value !== null && value !== undefined && value !== "") query.set(name, value);
    const text = query.toString();
    return text ? path + "?" + text : path;
}

// The JSON of a route. Throws an ApiError, or an AbortError when `signal` says that nobody waits for it any more.
async function apiGet(path, parameters, signal) {
    if (api.file) return offlineAnswer(path, parameters || {});
    const answer = await apiFetch(apiAddress(path, parameters), signal);
    return answer.json();
}

async function apiText(path, parameters, signal) {
    if (api.file) throw new ApiError("This file has no logs.", 404, null);
    return (await apiFetch(apiAddress(path, parameters), signal)).text();
}

async function apiFetch(address, signal) {
    let answer;
    try {
        answer = await fetch(address, {signal, cache: "no-store", credentials: "same-origin"});
    } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The viewer does not answer. Was caravan view stopped?", 0, null);
    }
    if (answer.ok) return answer;
    if (answer.status === 401)
        throw new ApiError(
            "This page's token is not valid any more: open the address that caravan view prints.", 401, null);
    let said = {};
    try {
        said = await answer.json();
    } catch (error) {
        if (error.name === "AbortError") throw error;
    }
    throw new ApiError(
        said.error || `The viewer answers with status ${answer.status}.`, answer.status, said.column ?? null);
}

// The address of a picture, null if this file does not have it.
function apiFrame(key, number) {
    if (api.file) return api.file.frames[`${key}/${number}`] || null;
    return `/frames/${encodeURIComponent(key)}/${number}.png`;
}

function groupPath(id) {
    return "/api/group/" + encodeURIComponent(id);
}
