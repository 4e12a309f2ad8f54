// The pages about a capture, in the order of the navigation. A new page is one entry here; see
// docs/adding-a-page.md.
import type { JSX } from "preact";
import { hasTimeline } from "../timeline/has-timeline";
import type { Report, Views } from "../report";
import type { Capture } from "../state/answers";
import { type RunViewLoad, runViewOf } from "../state/run-view";
import { CallsPage } from "./calls/page";
import { InputPage } from "./input";
import { KernelsPage } from "./kernels";
import { MemoryPage } from "./memory";
import { OperatorsPage } from "./operators";
import { ParallelismPage } from "./parallelism";
import { RanksPage } from "./ranks";
import { ReportPage } from "./report/page";
import { ServingPage } from "./serving";
import { StepsPage } from "./steps";
import { TimelinePage } from "./timeline";
import { TrainingPage } from "./training";

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
  /** Or, without views, if this holds for the capture, the view of its run and its report. */
  isShown?: (capture: Capture, run: RunViewLoad, report: Report | null) => boolean;
}

/** Event files may hold no scalars. That shows once they are read; those that are large wait for their page. */
const hasTraining = ({ has_scalars: hasFiles, reads_scalars: areRead }: Capture, run: RunViewLoad): boolean =>
  hasFiles && (run.state === "ready" ? run.value !== null : run.state === "failed" || !areRead);

const REPORT: CapturePage = { name: "report", label: "Report", Page: ReportPage };
const CAPTURE_PAGES: readonly CapturePage[] = [
  REPORT,
  { name: "training", label: "Training", Page: TrainingPage, isShown: hasTraining },
  {
    name: "timeline",
    label: "Timeline",
    Page: TimelinePage,
    isShown: (_capture, _run, report) => report !== null && hasTimeline(report),
  },
  { name: "steps", label: "Steps", Page: StepsPage, views: ["steps"] },
  { name: "input", label: "Input", Page: InputPage, views: ["input"] },
  { name: "kernels", label: "Kernels", Page: KernelsPage, views: ["kernels"] },
  { name: "operators", label: "Operators", Page: OperatorsPage, views: ["operators"] },
  { name: "calls", label: "Calls", Page: CallsPage, views: ["calls"] },
  { name: "memory", label: "Memory", Page: MemoryPage, views: ["memory", "snapshot"] },
  { name: "ranks", label: "Ranks", Page: RanksPage, views: ["ranks"] },
  { name: "parallelism", label: "Parallelism", Page: ParallelismPage, views: ["parallelism"] },
  { name: "serving", label: "Serving", Page: ServingPage, views: ["serving"] },
];

/** The page of a name in the URL; the report's for a name that no page has. */
export const capturePage = (name: string): CapturePage =>
  CAPTURE_PAGES.find((page) => page.name === name) ?? REPORT;

/** The pages that have something to show. Before the report is there, only those without views. */
export function shownPages(capture: Capture | undefined, report: Report | null): CapturePage[] {
  const available = new Set<string>(report?.available_views);
  return CAPTURE_PAGES.filter(({ views, isShown }) => {
    if (views) return views.some((view) => available.has(view));
    return isShown === undefined || (capture !== undefined && isShown(capture, runViewOf(capture.id), report));
  });
}
