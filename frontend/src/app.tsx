// The whole tab: the navigation and the current page.
import type { JSX } from "preact";
import type { CaptureList } from "./state/answers";
import { captures, isLinkDead, loadCaptures, page, pageLink, report, selectedCapture, selectedId, showCapture } from "./state/store";
import { ComparePage } from "./pages/compare";
import { EmptyPage } from "./pages/empty";
import { Failure } from "./widgets/failure";
import { WarningIcon } from "./widgets/icons";
import { Loading } from "./widgets/loading";
import { AboutPage } from "./pages/about/page";
import { RunsPage } from "./pages/runs/page";
import { Top } from "./pages/navigation";
import { canShow, capturePage } from "./pages/registry";
import { PageLink } from "./widgets/page-link";
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
      <Top list={list.value} />
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
    case "about":
      return <AboutPage list={list} />;
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
  const shown = capturePage(page.value);
  if (!canShow(shown, selectedCapture.value, current.value)) return <Nothing label={shown.label} />;
  return <shown.Page key={id} report={current.value} captureId={id} />;
}

/** What stands in place of a page for which the recording has no data. */
function Nothing({ label }: { label: string }): JSX.Element {
  return (
    <section class="card nothing">
      <h1>{label}: nothing in this recording</h1>
      <p>
        The <PageLink to={pageLink("report")}>report</PageLink> says what another recording would show.
      </p>
    </section>
  );
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
