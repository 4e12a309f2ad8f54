// The tab.
import type { JSX } from "preact";
import type { CaptureList } from "../api";
import { captures, loadCaptures, report, selectedCapture, selectedId, showCapture } from "../state";
import { Empty } from "./empty";
import { Failure } from "./failure";
import { Picker } from "./picker";
import { ReportView } from "./report-view";
import { Loading, Waiting } from "./waiting";

export function App(): JSX.Element {
  return <main class="page">{page()}</main>;
}

function page(): JSX.Element {
  const list = captures.value;
  if (list.state === "failed") {
    return <Failure error={list.error} onRetry={() => void loadCaptures()} />;
  }
  if (list.state !== "ready") return <Loading />;
  if (list.value.captures.length === 0) return <Empty list={list.value} />;
  return (
    <>
      <Picker
        captures={list.value.captures}
        selected={selectedCapture.value}
        isScanning={list.value.scan.is_scanning}
      />
      <Selected rejected={list.value.rejected} />
    </>
  );
}

function Selected({ rejected }: Pick<CaptureList, "rejected">): JSX.Element {
  const id = selectedId.value;
  const current = report.value;
  if (id === null || current.state === "loading") return <Loading />;
  if (current.state === "running") return <Waiting progress={current.progress} />;
  if (current.state === "failed") {
    return <Failure error={current.error} onRetry={() => void showCapture(id)} />;
  }
  return <ReportView key={id} report={current.value} captureId={id} rejected={rejected} />;
}
