"use strict";
// Numbers as text: fixed decimals, a real minus, a dash for what is absent.

const ABSENT = "–";

function isNumber(value) {
    return typeof value === "number" && Number.isFinite(value);
}

function fixed(value, digits = 0) {
    if (!isNumber(value)) return ABSENT;
    const text = Math.abs(value).toFixed(digits);
    const [whole, part] = text.split(".");
    const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? "." + part : "");
    return value < 0 && Number(text) !== 0 ? "−" + grouped : grouped;
}

function signed(value, digits) {
    return isNumber(value) && value >= 0 ? "+" + fixed(value, digits) : fixed(value, digits);
}

function percent(value, digits = 0) {
    return isNumber(value) ? fixed(value * 100, digits) + " %" : ABSENT;
}

// So many decimals that a value of this size has `figures` significant digits.
function digitsFor(size, figures = 3) {
    if (!isNumber(size) || size === 0) return 0;
    return Math.max(0, Math.min(6, figures - 1 - Math.floor(Math.log10(Math.abs(size)))));
}

function significant(value, figures = 3) {
    if (isNumber(value) && value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(1).replace(/-/g, "−");
    return fixed(value, digitsFor(value, figures));
}

function duration(seconds) {
    if (!isNumber(seconds)) return ABSENT;
    if (seconds < 0) return "−" + duration(-seconds);
    if (seconds === 0) return "0 ms";
    if (seconds < 0.001) return "<1 ms";
    if (seconds < 0.0995) return fixed(seconds * 1000) + " ms";
    if (seconds < 59.95) return fixed(seconds, 1) + " s";
    const whole = Math.round(seconds), pad = n => String(n).padStart(2, "0");
    const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
    if (hours >= 48) return `${fixed(Math.floor(hours / 24))} d ${hours % 24} h`;
    return minutes < 60 ? `${minutes}:${pad(whole % 60)}`
                        : `${hours}:${pad(minutes % 60)}:${pad(whole % 60)}`;
}

// Seconds as m:ss, of times that are minutes or hours.
function clockDuration(seconds) {
    if (!isNumber(seconds)) return ABSENT;
    return seconds < 60 ? "0:" + String(Math.ceil(seconds)).padStart(2, "0").replace("60", "59") : duration(seconds);
}

// A rate of groups, by the hour where it is below one in 10 s.
function rateText(rate, unit = "") {
    if (!isNumber(rate)) return ABSENT;
    return rate > 0 && rate < 0.1 ? `${significant(rate * 3600, 2)} ${unit}/h` : `${fixed(rate, 1)} ${unit}/s`;
}

function plural(count, word) {
    return `${fixed(count)} ${word}${count === 1 ? "" : "s"}`;
}

// The time of day; `dated`: with month and day in front.
function timeOfDay(seconds, dated = false) {
    if (!isNumber(seconds)) return ABSENT;
    const time = new Date(seconds * 1000), pad = n => String(n).padStart(2, "0");
    return (dated ? `${pad(time.getMonth() + 1)}-${pad(time.getDate())} ` : "") + time.toTimeString().slice(0, 8);
}

// ---- of arrays, in which null is absent ----

function meanOf(values) {
    let sum = 0, count = 0;
    for (const value of values)
        if (isNumber(value)) sum += value, count++;
    return count ? sum / count : null;
}

function maxOf(values) {
    return values.reduce((most, value) => isNumber(value) && (most === null || value > most) ? value : most, null);
}

function minOf(values) {
    return values.reduce((least, value) => isNumber(value) && (least === null || value < least) ? value : least, null);
}

// How many rows a tenth of the steps are, at least one.
function tenthOf(values) {
    return Math.max(1, Math.round(values.length / 10));
}

// The centred mean of `width` rows. A row that is absent stays so.
function smoothed(values, width) {
    const half = Math.floor(width / 2);
    return values.map((value, i) => isNumber(value) ? meanOf(values.slice(Math.max(0, i - half), i + half + 1)) : null);
}

function smoothingWidth(count) {
    return Math.max(1, Math.round(count / 12) | 1);
}
