export const Memory = (_: Record<string, unknown>) => <p>memory</p>;
