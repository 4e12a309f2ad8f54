// Whether the window has room for two columns, as in style.css.
import { useEffect, useState } from "preact/hooks";

const WIDE = "(min-width: 1060px)";

const isWideNow = (): boolean => globalThis.matchMedia?.(WIDE).matches ?? false;

export function useIsWide(): boolean {
  const [isWide, setWide] = useState(isWideNow);
  useEffect(() => {
    const query = matchMedia(WIDE);
    const update = (): void => setWide(query.matches);
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return isWide;
}
