// Amounts, times and ages as text.

/** Phases of a restart, in order. */
export const PHASES = ['detect', 'decide', 'stop', 'barrier', 'start'];

const SPANS = [[86400, 'd'], [3600, 'h'], [60, 'm']];

/** A span in seconds, as kubectl prints ages: `45s`, `15m`, `2h`, `3d`. */
export function span(seconds) {
  for (const [size, unit] of SPANS) {
    if (seconds >= 2 * size || (size === 86400 && seconds >= size)) return `${Math.floor(seconds / size)}${unit}`;
  }
  return `${Math.max(0, Math.floor(seconds))}s`;
}

/** Age of an RFC 3339 time at `now` in milliseconds. */
export function age(time, now) {
  return time ? span((now - Date.parse(time)) / 1000) : '';
}

/** Clock time in UTC; with the date if it is not the day of `now`. */
export function clock(time, now, seconds = false) {
  if (!time) return '';
  const text = new Date(time).toISOString();
  const hour = text.slice(11, seconds ? 19 : 16);
  return text.slice(0, 10) === new Date(now).toISOString().slice(0, 10) ? hour : `${text.slice(5, 10)} ${hour}`;
}

/** An integer with separators of thousands. */
export function amount(number) {
  return number === null || number === undefined ? '' : Math.round(number).toLocaleString('en-US');
}

/** A count with its noun: `1 gang`, `3 gangs`. */
export function count(number, noun) {
  return `${amount(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** Accelerator-seconds as hours. Costs are shown in GPU-hours for any accelerator. */
export function gpuHours(seconds) {
  if (seconds === null || seconds === undefined) return '';
  const hours = seconds / 3600;
  return `${hours >= 100 ? amount(hours) : hours >= 0.05 || hours === 0 ? hours.toFixed(1) : hours.toFixed(3)} GPU-h`;
}

/** A part of one as a percentage. */
export function percent(part) {
  return part === null || part === undefined ? '' : `${(part * 100).toFixed(1)} %`;
}

/** A number of milliseconds: `90 ms`, `2.0 s`, `3m`. */
export function duration(ms) {
  if (ms === null || ms === undefined) return '';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : span(ms / 1000);
}

/** What happened first, in one line. */
export function cause(cause) {
  if (!cause) return '';
  const parts = [cause.kind];
  if (cause.exitCode !== undefined && cause.exitCode !== null) parts.push(`exit ${cause.exitCode}`);
  if (cause.reason && cause.reason !== cause.kind && cause.reason !== 'Error') parts.push(cause.reason);
  return parts.join(' ');
}

/** Flags of a command for a workload `NS/NAME`. */
export function target(name) {
  const [namespace, workload] = name.split('/');
  return `${workload} -n ${namespace}`;
}

/** Latest start of a gang. */
export function startsBy(time, now) {
  if (!time) return '';
  return Date.parse(time) < now ? 'overdue' : `by ${clock(time, now)}`;
}
