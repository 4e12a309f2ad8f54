// The tab.
import type { JSX } from "preact";
import type { CaptureList } from "../api";
import { captures, loadCaptures, report, selectedCapture, selectedId, showCapture, view } from "../state";
import { Compare } from "./compare";
import { Empty } from "./empty";
import { Failure } from "./failure";
import { Files } from "./files";
import { Input } from "./input";
import { Kernels } from "./kernels";
import { Memory } from "./memory";
import { Picker } from "./picker";
import { Ranks } from "./ranks";
import { ReportView } from "./report-view";
import { Rules } from "./rules";
import { Steps } from "./steps";
import { Views } from "./views";
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
      <Views />
      <Shown list={list.value} />
    </>
  );
}

/** The views of all captures stand by themselves; the others wait for the report. */
function Shown({ list }: { list: CaptureList }): JSX.Element {
  switch (view.value) {
    case "compare":
      return <Compare captures={list.captures} />;
    case "rules":
      return <Rules />;
    case "files":
      return <Files list={list} />;
    default:
      return <Selected rejected={list.rejected} />;
  }
}

function Selected({ rejected }: Pick<CaptureList, "rejected">): JSX.Element {
  const id = selectedId.value;
  const current = report.value;
  if (id === null || current.state === "loading") return <Loading />;
  if (current.state === "running") return <Waiting progress={current.progress} />;
  if (current.state === "failed") {
    return <Failure error={current.error} onRetry={() => void showCapture(id, [], true)} />;
  }
  const shared = { key: id, report: current.value, captureId: id };
  switch (view.value) {
    case "steps":
      return <Steps {...shared} />;
    case "ranks":
      return <Ranks {...shared} />;
    case "input":
      return <Input {...shared} />;
    case "kernels":
      return <Kernels {...shared} />;
    case "memory":
      return <Memory {...shared} />;
    default:
      return <ReportView {...shared} rejected={rejected} />;
  }
}
