import assert from "node:assert/strict";
import { test } from "node:test";
import type { Capture } from "../../src/state/answers";
import { readLink, withLinkValues } from "../../src/state/host";
import { profileLink, profileTarget, traceViewerLink } from "../../src/state/profile-tab";

const BASE = new URL("http://host/foo/data/plugin/perf_advisor/");
const TARGET = { run: "gpu/2026_01_02", host: "host1" };
const CAPTURE = {
  id: "a", run: "gpu", session: "2026_01_02", recorded: "", framework: "jax", format_label: "xplane", is_for_profile_tab: true, files: 1, has_scalars: false, reads_scalars: false,
  size_bytes: 1, version: "1", status: "done", failure: null, is_synthetic: false, headline: null, device: null,
  step_time_ns: null, first_change: null, finding: null, saves_share: null, severity: null, partners: [],
} satisfies Capture;

test("links to the Profile tab keep the prefix and foreign query keys", () => {
  assert.equal(
    profileLink(BASE, "?tensorboardColab=true&run=old&tag=x&firstLoad=true", TARGET, "kernel_stats"),
    "http://host/foo/?tensorboardColab=true&run=gpu%2F2026_01_02&tool=kernel_stats&host=host1#profile",
  );
});

test("the trace viewer gets milliseconds and a data URL with the prefix", () => {
  const url = new URL(traceViewerLink(BASE, TARGET, 1_620_000_000, 1_660_000_000));
  assert.equal(url.pathname, "/foo/data/plugin/profile/trace_viewer_index.html");
  assert.equal(url.searchParams.get("view_start"), "1620");
  assert.equal(url.searchParams.get("view_end"), "1660");
  assert.equal(
    url.searchParams.get("trace_data_url"),
    "/foo/data/plugin/profile/data?run=gpu%2F2026_01_02&tag=trace_viewer%40&host=host1",
  );
});

test("only an XPlane that the Profile tab knows has a target", () => {
  assert.equal(profileTarget(CAPTURE), null);
  const known = { ...CAPTURE, profile_run: "gpu/2026_01_02", profile_host: "host1" };
  assert.deepEqual(profileTarget(known), TARGET);
});

test("the URL holds capture and finding beside foreign values", () => {
  const hash = "#perf_advisor&p.perf_advisor.capture=a%20b&p.other.x=1&p.perf_advisor.finding=%E0%A4";
  assert.deepEqual(readLink(hash), { capture: "a b" });
  assert.equal(
    withLinkValues("#perf_advisor&p.other.x=1&p.perf_advisor.finding=old", { finding: "input-stall", view: "" }),
    "#perf_advisor&p.other.x=1&p.perf_advisor.finding=input-stall",
  );
  assert.equal(withLinkValues("#perf_advisor&p.perf_advisor.finding=old", { finding: "" }), "#perf_advisor");
});
