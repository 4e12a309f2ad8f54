// The files of the log folder that were not read, and why. The server sends some of them at a time.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { formatCount } from "../../format";
import { type RejectedFile, type RejectedFiles, toApiError } from "../../state/answers";
import { fetchRejected } from "../../state/api";
import { isExported } from "../../state/exported";
import { useLinked } from "../../state/linked";
import { asSentence } from "../../text";
import { Find } from "../../widgets/find";
import { Name } from "../../widgets/name";
import { ScrollBox } from "../../widgets/scroll-box";

/** Shorter lists have no search field. */
const MIN_SEARCHABLE = 8;

export function UnreadFiles({ rejected, rejected_count: count }: RejectedFiles): JSX.Element {
  const [query, setQuery] = useLinked("files-not-read.find");
  const [found, setFound] = useState<RejectedFiles>({ rejected, rejected_count: count });
  const [problem, setProblem] = useState("");
  const load = async (before: RejectedFile[], signal?: AbortSignal): Promise<void> => {
    setProblem("");
    try {
      const page = await fetchRejected(query, before.length, signal);
      setFound({ ...page, rejected: [...before, ...page.rejected] });
    } catch (error) {
      if (!signal?.aborted) setProblem(toApiError(error).message);
    }
  };
  useEffect(() => {
    if (query === "") return setFound({ rejected, rejected_count: count });
    const controller = new AbortController();
    void load([], controller.signal);
    return () => controller.abort();
  }, [query, rejected, count]);
  const hidden = found.rejected_count - found.rejected.length;
  return (
    <div class="data-table">
      {count > MIN_SEARCHABLE && !isExported && (
        <div class="table-tools">
          <Find label="Find a file" query={query} setQuery={setQuery} found={found.rejected_count} of={count} />
        </div>
      )}
      <ScrollBox role="group" label="Files not read">
        <table>
          <thead>
            <tr>
              <th scope="col" class="text">
                File
              </th>
              <th scope="col" class="text">
                Reason
              </th>
            </tr>
          </thead>
          <tbody>
            {found.rejected.map(({ path, reason }) => (
              <tr key={path}>
                <td class="text">
                  <code>
                    <Name of={path} />
                  </code>
                </td>
                <td class="text">{asSentence(reason)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {found.rejected.length === 0 && <p class="truncated">No matching rows.</p>}
        {hidden > 0 && isExported && <p class="truncated">{formatCount(hidden)} more not included</p>}
        {hidden > 0 && !isExported && (
          <button type="button" class="show-all" onClick={() => void load(found.rejected)}>
            Show more ({formatCount(hidden)} hidden)
          </button>
        )}
        {problem && <p role="alert">{problem}</p>}
      </ScrollBox>
    </div>
  );
}
