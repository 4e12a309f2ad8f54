// The pages about a capture, in the order of the navigation. A new page is one entry here; see
// docs/adding-a-page.md.
import type { JSX } from "preact";
import { hasTimeline } from "../timeline/has-timeline";
import type { Report, Views } from "../report";
import type { Capture } from "../state/answers";
import { runViewOf } from "../state/run-view";
import { isRecordedAgain } from "../state/capture-name";
import { DevicePage } from "./device";
import { HostPage } from "./host/page";
import { InputPage } from "./input";
import { MemoryPage } from "./memory";
import { OverTimePage } from "./over-time";
import { RanksPage } from "./ranks";
import { ReportPage } from "./report/page";
import { ServingPage } from "./serving";
import { TimelinePage } from "./timeline";

export interface CapturePageProps {
  report: Report;
  captureId: string;
}

interface CapturePage {
  /** In the URL. */
  name: string;
  label: string;
  Page: (props: CapturePageProps) => JSX.Element;
  /** It has something to show if the report has one of these views. */
  views?: readonly (keyof Views)[];
  /** Or if this holds for the capture and its report, which is null before it is there. */
  isShown?: (capture: Capture, report: Report | null) => boolean;
}

/** Event files may hold no scalars. That shows once they are read; those that are large wait for their page. */
function hasTraining({ id, has_scalars: hasFiles, reads_scalars: areRead }: Capture): boolean {
  const run = runViewOf(id);
  return hasFiles && (run.state === "ready" ? run.value !== null : run.state === "failed" || !areRead);
}

const REPORT: CapturePage = { name: "report", label: "Report", Page: ReportPage };
const CAPTURE_PAGES: readonly CapturePage[] = [
  REPORT,
  {
    name: "timeline",
    label: "Timeline",
    Page: TimelinePage,
    isShown: (_, report) => report !== null && hasTimeline(report),
  },
  { name: "device", label: "Device", Page: DevicePage, views: ["kernels"] },
  { name: "host", label: "Host", Page: HostPage, views: ["operators", "calls"] },
  { name: "memory", label: "Memory", Page: MemoryPage, views: ["memory", "snapshot"] },
  { name: "ranks", label: "Ranks", Page: RanksPage, views: ["ranks", "parallelism"] },
  {
    name: "time",
    label: "Over time",
    Page: OverTimePage,
    views: ["steps"],
    isShown: (capture) => isRecordedAgain(capture) || hasTraining(capture),
  },
  { name: "input", label: "Input", Page: InputPage, views: ["input"] },
  { name: "serving", label: "Serving", Page: ServingPage, views: ["serving"] },
];

/** The page of a name in the URL; the report's for a name that no page has. */
export const capturePage = (name: string): CapturePage =>
  CAPTURE_PAGES.find((page) => page.name === name) ?? REPORT;

/** The pages that have something to show. Before the report is there, only those without views. */
export function shownPages(capture: Capture | undefined, report: Report | null): CapturePage[] {
  const available = new Set<string>(report?.available_views);
  return CAPTURE_PAGES.filter(
    ({ name, views, isShown }) =>
      name === REPORT.name ||
      views?.some((view) => available.has(view)) ||
      (capture !== undefined && isShown?.(capture, report)),
  );
}

/** Whether a page can be shown: scalars that are not read yet may have something to show. */
export const canShow = (page: CapturePage, capture: Capture | undefined, report: Report): boolean =>
  shownPages(capture, report).includes(page) || (page.Page === OverTimePage && capture?.has_scalars === true);
