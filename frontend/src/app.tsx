// The whole tab: the capture picker, the navigation and the current page.
import type { JSX } from "preact";
import type { CaptureList } from "./state/answers";
import { captures, isLinkDead, loadCaptures, page, report, selectedCapture, selectedId, showCapture } from "./state/store";
import { ComparePage } from "./pages/compare";
import { EmptyPage } from "./pages/empty";
import { Failure } from "./widgets/failure";
import { WarningIcon } from "./widgets/icons";
import { Loading } from "./widgets/loading";
import { FilesPage } from "./pages/files";
import { HistoryPage } from "./pages/history";
import { InputPage } from "./pages/input";
import { KernelsPage } from "./pages/kernels";
import { MemoryPage } from "./pages/memory";
import { OperatorsPage } from "./pages/operators";
import { ParallelismPage } from "./pages/parallelism";
import { Picker } from "./pages/picker";
import { RanksPage } from "./pages/ranks";
import { ReportPage } from "./pages/report/page";
import { RulesPage } from "./pages/rules";
import { RunsPage } from "./pages/runs";
import { ServingPage } from "./pages/serving";
import { StepsPage } from "./pages/steps";
import { TrainingPage } from "./pages/training";
import { Navigation } from "./pages/navigation";
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
      {page.value !== "runs" && (
        <Picker
          captures={list.value.captures}
          selected={selectedCapture.value}
          isScanning={list.value.scan.is_scanning}
        />
      )}
      <Navigation />
      <CurrentPage list={list.value} />
    </>
  );
}

function CurrentPage({ list }: { list: CaptureList }): JSX.Element {
  switch (page.value) {
    case "runs":
      return <RunsPage list={list} />;
    case "compare":
      return <ComparePage captures={list.captures} />;
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
    return <Failure error={current.error} onRetry={() => void showCapture(id, [], true)} />;
  }
  const shared = { key: id, report: current.value, captureId: id };
  switch (page.value) {
    case "training":
      return <TrainingPage {...shared} />;
    case "history":
      return <HistoryPage key={id} captureId={id} />;
    case "steps":
      return <StepsPage {...shared} />;
    case "ranks":
      return <RanksPage {...shared} />;
    case "parallelism":
      return <ParallelismPage {...shared} />;
    case "input":
      return <InputPage {...shared} />;
    case "kernels":
      return <KernelsPage {...shared} />;
    case "operators":
      return <OperatorsPage {...shared} />;
    case "memory":
      return <MemoryPage {...shared} />;
    case "serving":
      return <ServingPage {...shared} />;
    default:
      return <ReportPage {...shared} />;
  }
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
