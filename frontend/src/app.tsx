// The whole tab: the capture picker, the navigation and the current page.
import type { JSX } from "preact";
import type { CaptureList } from "./state/answers";
import { captures, isAboutCapture, isLinkDead, loadCaptures, page, report, selectedCapture, selectedId, showCapture } from "./state/store";
import { ComparePage } from "./pages/compare";
import { EmptyPage } from "./pages/empty";
import { Failure } from "./widgets/failure";
import { WarningIcon } from "./widgets/icons";
import { Loading } from "./widgets/loading";
import { FilesPage } from "./pages/files";
import { Picker } from "./pages/picker";
import { RulesPage } from "./pages/rules";
import { RunsPage } from "./pages/runs/page";
import { HistoryPage } from "./pages/history";
import { CaptureNavigation, FolderNavigation } from "./pages/navigation";
import { capturePage } from "./pages/registry";
import { AnalysisProgress } from "./pages/analysis-progress";

export function App(): JSX.Element {
  return <main class="page">{content()}</main>;
}

function content(): JSX.Element {
  const list = captures.value;
  if (list.state === "failed") {
    return <Failure error={list.error} onRetry={() => void loadCaptures()} />;
  }
  if (list.state !== "ready") return <Loading />;
  if (list.value.captures.length === 0) return <EmptyPage list={list.value} />;
  return (
    <>
      <FolderNavigation captures={list.value.captures} />
      {selectsCapture() && (
        <div class="capture-head">
          <Picker
            captures={list.value.captures}
            selected={selectedCapture.value}
            isScanning={list.value.scan.is_scanning}
          />
          {selectedId.value !== null && <CaptureNavigation />}
        </div>
      )}
      <CurrentPage list={list.value} />
    </>
  );
}

/** Whether a capture is selected, or can be: Runs is about none, and Compare and History choose their own. */
const selectsCapture = (): boolean => page.value !== "runs" && (selectedId.value !== null || isAboutCapture(page.value));

function CurrentPage({ list }: { list: CaptureList }): JSX.Element {
  switch (page.value) {
    case "runs":
      return <RunsPage list={list} />;
    case "compare":
      return <ComparePage captures={list.captures} />;
    case "history":
      return <HistoryPage captures={list.captures} />;
    case "rules":
      return <RulesPage />;
    case "files":
      return <FilesPage list={list} />;
    default:
      return <CapturePage />;
  }
}

/** A page about the selected capture, once its report is there. */
function CapturePage(): JSX.Element {
  const id = selectedId.value;
  const current = report.value;
  if (isLinkDead.value) return <DeadLink />;
  if (id === null || current.state === "loading") return <Loading />;
  if (current.state === "running") return <AnalysisProgress progress={current.progress} />;
  if (current.state === "failed") {
    return <Failure error={current.error} onRetry={() => void showCapture(id, true)} />;
  }
  const { Page } = capturePage(page.value);
  return <Page key={id} report={current.value} captureId={id} />;
}

function DeadLink(): JSX.Element {
  return (
    <section class="card failure" role="alert">
      <WarningIcon />
      <div>
        <h1>The linked profile is not here</h1>
        <p class="muted">
          Its files were moved or deleted, or the link belongs to another logdir. Choose a profile above.
        </p>
      </div>
    </section>
  );
}
